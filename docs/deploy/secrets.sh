#!/bin/sh
# Generate the secrets for docker-compose.yml, each in the volumes of the services that read it.
#
#   secrets.sh FOLDER      FOLDER/server, FOLDER/redis, FOLDER/prometheus, FOLDER/grafana
#
# Existing secrets are kept. Nothing is printed. Every user can read the files, because containers have different users;
# access is limited by the volumes of each container.
set -eu
cd "$1"
mkdir -p server redis prometheus grafana
umask 022

hex() { head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' && echo; }
base64_key() { head -c 32 /dev/urandom | base64; }
# Write to a temporary file and rename it, because a truncated secret would be weak.
make() {
    [ -s "$2" ] || { "$1" > "$2.new" && mv "$2.new" "$2"; }
}
copy() {
    cp "$1" "$2.new" && mv "$2.new" "$2"
}

make hex redis/redis_password
copy redis/redis_password server/redis_password
make hex grafana/grafana_password
make base64_key server/state_keys
make hex server/api_keys
# Prometheus has its own API key, which the server also needs.
make hex prometheus/metrics_key
grep -qxF -f prometheus/metrics_key server/api_keys || cat prometheus/metrics_key >> server/api_keys
