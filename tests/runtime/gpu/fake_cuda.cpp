// Stands for libcuda where there is no GPU: it holds callers to what the driver asks of them, and hands launches on.
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {
enum {
    SUCCESS = 0, INVALID_VALUE = 1, INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400, NOT_FOUND = 500,
};
constexpr int DEVICES = 2, MAX_DYNAMIC_SHARED = 8, OPT_IN = 232448, UNASKED = 49152;

struct Context {
    int retained = 0;
};
struct Function {
    std::string name;
    const Context* context = nullptr;
    const std::string* image = nullptr;
    int shared = UNASKED;
};
struct Module {
    const Context* context;
    std::string image;
    std::map<std::string, Function> functions;
};
using Played = int (*)(const char* image, size_t bytes, const char* name, const unsigned* sizes, unsigned shared, void* stream, void** parameters);

Played played = nullptr;
int version = 12080;
int loaded = 0, bound = 0;
Context contexts[DEVICES];
// Its end is current: as in the driver, of each thread its own, and at first none.
thread_local std::vector<Context*> stack;

Context* current() { return stack.empty() ? nullptr : stack.back(); }

// An ELF file's end is that of its table of sections.
size_t size_of(const unsigned char* image) {
    uint64_t offset;
    uint16_t bytes, count;
    std::memcpy(&offset, image + 40, 8);
    std::memcpy(&bytes, image + 58, 2);
    std::memcpy(&count, image + 60, 2);
    return offset + size_t(bytes) * count;
}
}  // namespace

extern "C" {
void fake_set(Played function, int cuda) {
    played = function, version = cuda, loaded = bound = 0;
    for (auto& context : contexts) context.retained = 0;
    stack.clear();
}
int fake_loaded() { return loaded; }
int fake_bound() { return bound; }
int fake_retained(int device) { return contexts[device].retained; }
int fake_current() { return current() ? int(current() - contexts) : -1; }

int cuDriverGetVersion(int* out) { return *out = version, SUCCESS; }

int cuDeviceGet(int* device, int ordinal) {
    if (ordinal < 0 || ordinal >= DEVICES) return INVALID_DEVICE;
    return *device = ordinal, SUCCESS;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
    if (device < 0 || device >= DEVICES) return INVALID_DEVICE;
    return ++contexts[device].retained, *context = &contexts[device], SUCCESS;
}

int cuCtxSetCurrent(void* context) {
    if (!stack.empty()) stack.pop_back();
    if (context) stack.push_back(static_cast<Context*>(context));
    return ++bound, SUCCESS;
}

int cuCtxPushCurrent_v2(void* context) {
    if (!context) return INVALID_CONTEXT;
    return stack.push_back(static_cast<Context*>(context)), SUCCESS;
}

int cuCtxPopCurrent_v2(void** context) {
    if (stack.empty()) return INVALID_CONTEXT;
    *context = stack.back();
    return stack.pop_back(), SUCCESS;
}

int cuModuleLoadData(void** module, const void* image) {
    if (!current()) return INVALID_CONTEXT;
    auto bytes = static_cast<const unsigned char*>(image);
    uint16_t machine;
    std::memcpy(&machine, bytes + 18, 2);
    if (std::memcmp(bytes, "\177ELF", 4) || machine != 190) return INVALID_IMAGE;
    auto made = new Module;
    made->context = current();
    made->image.assign(reinterpret_cast<const char*>(bytes), size_of(bytes));
    return *module = made, ++loaded, SUCCESS;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
    if (!current()) return INVALID_CONTEXT;
    auto of = static_cast<Module*>(module);
    std::string section = std::string(".text.") + name;
    if (of->image.find(section.c_str(), 0, section.size() + 1) == std::string::npos) return NOT_FOUND;
    auto& found = of->functions[name];
    found.name = name, found.image = &of->image, found.context = of->context;
    return *function = &found, SUCCESS;
}

int cuFuncSetAttribute(void* function, int attribute, int value) {
    if (!current()) return INVALID_CONTEXT;
    if (attribute != MAX_DYNAMIC_SHARED || value < 0 || value > OPT_IN) return INVALID_VALUE;
    return static_cast<Function*>(function)->shared = value, SUCCESS;
}

int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** parameters, void** extra) {
    if (!current()) return INVALID_CONTEXT;
    auto of = static_cast<Function*>(function);
    if (of->context != current()) return INVALID_HANDLE;
    bool is_grid = gx && gy && gz && gx < 1u << 31 && gy < 65536 && gz < 65536;
    bool is_block = bx && bx <= 1024 && by == 1 && bz == 1;
    if (!is_grid || !is_block || int(shared) > of->shared || !parameters || extra) return INVALID_VALUE;
    const unsigned sizes[] = {gx, gy, gz, bx, by, bz};
    return played(of->image->data(), of->image->size(), of->name.c_str(), sizes, shared, stream, parameters);
}

int cuGetErrorString(int code, const char** text) {
    static const std::map<int, const char*> texts = {
        {INVALID_VALUE, "invalid argument"}, {INVALID_DEVICE, "invalid device ordinal"},
        {INVALID_IMAGE, "device kernel image is invalid"}, {INVALID_CONTEXT, "invalid device context"},
        {INVALID_HANDLE, "invalid resource handle"}, {NOT_FOUND, "named symbol not found"},
    };
    *text = texts.at(code);
    return SUCCESS;
}
}
