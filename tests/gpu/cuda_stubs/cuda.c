/* The CUDA driver beside `cudart.c`: modules load, and their kernels do nothing. */
#include <cuda.h>
#include <stdlib.h>

#define DONE return CUDA_SUCCESS

CUresult cuDriverGetVersion(int *to) { *to = 13000; DONE; }
CUresult cuDeviceGetCount(int *to) { *to = 1; DONE; }
CUresult cuDeviceGet(CUdevice *to, int number) { *to = number; DONE; }
CUresult cuCtxGetCurrent(CUcontext *to) { *to = (CUcontext)16; DONE; }
CUresult cuCtxGetDevice(CUdevice *to) { *to = 0; DONE; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *to, CUdevice device) { *to = (CUcontext)16; DONE; }
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) { *flags = 0, *active = 1; DONE; }
CUresult cuGetErrorString(CUresult error, const char **to) { *to = "an error of the CUDA stub"; DONE; }
CUresult cuModuleLoadData(CUmodule *to, const void *image) { *to = (CUmodule)16; DONE; }
CUresult cuModuleGetFunction(CUfunction *to, CUmodule module, const char *name) { *to = (CUfunction)16; DONE; }
CUresult cuFuncGetAttribute(int *to, CUfunction_attribute asked, CUfunction function) {
    *to = asked == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : asked == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    DONE;
}
CUresult cuPointerGetAttribute(void *to, CUpointer_attribute asked, CUdeviceptr at) {
    if (asked == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) *(CUdeviceptr *)to = at;
    else *(int *)to = asked == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? CU_MEMORYTYPE_DEVICE : 0;
    DONE;
}
CUresult cuDeviceGetAttribute(int *to, CUdevice_attribute asked, CUdevice device) {
    switch (asked) {
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *to = 9; break;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *to = 132; break;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *to = 49152; break;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *to = 232448; break;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *to = 233472; break;
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *to = 65536; break;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *to = 2048; break;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *to = 1024; break;
        case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *to = 32; break;
        case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *to = 1980000; break;
        case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *to = 2619000; break;
        case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *to = 5120; break;
        default: *to = 0;
    }
    DONE;
}
