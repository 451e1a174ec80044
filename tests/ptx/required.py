"""What every test of compiled kernels needs: importing this skips the module where it is not there."""

import pytest
import torch

from tests.ptx.emulator import machine

if machine.missing() is not None:
    pytest.skip(str(machine.missing()), allow_module_level=True)
pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("the kernels are defined for the GPU that is here", allow_module_level=True)
