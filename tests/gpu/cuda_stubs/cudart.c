/* The CUDA runtime of a device that computes nothing. Memory of the device is zero pages of the host, which take
 * none, and stays so; kernels, copies to the device, graphs, streams and events do nothing. What PyTorch's
 * allocator reserves, which operators run and with what dtypes is then as on a GPU; values and times are not. */
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define DONE return cudaSuccess
#define CONTEXT (600UL << 20)
#define MOST 65536

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { char *at; size_t size; int host; } blocks[MOST];
static int count;
static size_t used = CONTEXT;
static int capturing;
static cudaError_t last;

static size_t total(void) {
    const char *given = getenv("CUDA_STUB_MEMORY");
    return given ? strtoull(given, NULL, 10) : 85029158912UL;
}

static cudaError_t take(void **to, size_t size, int host) {
    pthread_mutex_lock(&lock);
    cudaError_t found = cudaSuccess;
    if (!host && used + size > total()) found = last = cudaErrorMemoryAllocation;
    else {
        void *at = mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED || count == MOST) abort();
        blocks[count].at = at, blocks[count].size = size, blocks[count++].host = host;
        if (!host) used += size;
        *to = at;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static cudaError_t give(void *at) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++)
        if (blocks[i].at == at) {
            munmap(at, blocks[i].size ? blocks[i].size : 1);
            if (!blocks[i].host) used -= blocks[i].size;
            blocks[i] = blocks[--count];
            break;
        }
    pthread_mutex_unlock(&lock);
    DONE;
}

cudaError_t cudaMalloc(void **to, size_t size) { return take(to, size, 0); }
cudaError_t cudaFree(void *at) { return give(at); }
cudaError_t cudaHostAlloc(void **to, size_t size, unsigned flags) { return take(to, size, 1); }
cudaError_t cudaFreeHost(void *at) { return give(at); }
cudaError_t cudaMemGetInfo(size_t *left, size_t *all) { *all = total(), *left = total() - used; DONE; }

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *to, const void *at) {
    memset(to, 0, sizeof *to);
    to->type = cudaMemoryTypeUnregistered;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++)
        if ((char *)at >= blocks[i].at && (char *)at < blocks[i].at + blocks[i].size) {
            to->type = blocks[i].host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
            to->devicePointer = to->hostPointer = (void *)at;
        }
    pthread_mutex_unlock(&lock);
    DONE;
}

static int of_device(const void *at) {
    struct cudaPointerAttributes found;
    cudaPointerGetAttributes(&found, at);
    return found.type == cudaMemoryTypeDevice;
}

/* Memory of the device stays zeros: nothing is written there. */
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    if (!of_device(to)) memmove(to, from, size);
    DONE;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
    return cudaMemcpy(to, from, size, kind);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t next, const void *from, size_t after, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream) {
    for (size_t row = 0; row < height; row++) cudaMemcpy((char *)to + row * next, (char *)from + row * after, width, kind);
    DONE;
}

cudaError_t cudaGetDeviceCount(int *to) { *to = 1; DONE; }
cudaError_t cudaGetDevice(int *to) { *to = 0; DONE; }
cudaError_t cudaDriverGetVersion(int *to) { *to = 13000; DONE; }
cudaError_t cudaRuntimeGetVersion(int *to) { *to = 13000; DONE; }
cudaError_t cudaGetLastError(void) { cudaError_t found = last; last = cudaSuccess; return found; }
cudaError_t cudaPeekAtLastError(void) { return last; }
const char *cudaGetErrorString(cudaError_t error) { return error == cudaErrorMemoryAllocation ? "out of memory" : "no error"; }
const char *cudaGetErrorName(cudaError_t error) { return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaSuccess"; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0, *greatest = -5; DONE; }
cudaError_t cudaDeviceGetPCIBusId(char *to, int size, int device) { snprintf(to, size, "0000:00:00.0"); DONE; }
cudaError_t cudaDeviceCanAccessPeer(int *to, int device, int other) { *to = 0; DONE; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *to, int device) {
    memset(to, 0, sizeof *to);
    strcpy(to->name, "a stub of an H100, which computes nothing");
    to->totalGlobalMem = total();
    to->major = 9, to->multiProcessorCount = 132, to->warpSize = 32, to->maxThreadsPerBlock = 1024;
    to->sharedMemPerBlock = 49152, to->sharedMemPerBlockOptin = 232448, to->sharedMemPerMultiprocessor = 233472;
    to->regsPerBlock = to->regsPerMultiprocessor = 65536, to->maxThreadsPerMultiProcessor = 2048;
    to->maxThreadsDim[0] = to->maxThreadsDim[1] = 1024, to->maxThreadsDim[2] = 64;
    to->maxGridSize[0] = 2147483647, to->maxGridSize[1] = to->maxGridSize[2] = 65535;
    to->totalConstMem = 65536, to->l2CacheSize = 52428800, to->maxBlocksPerMultiProcessor = 32;
    to->unifiedAddressing = to->concurrentKernels = to->streamPrioritiesSupported = to->cooperativeLaunch = 1;
    to->asyncEngineCount = 3, to->memoryBusWidth = 5120, to->textureAlignment = 512;
    DONE;
}

cudaError_t cudaDeviceGetAttribute(int *to, enum cudaDeviceAttr asked, int device) {
    struct cudaDeviceProp found;
    cudaGetDeviceProperties(&found, device);
    switch (asked) {
        case cudaDevAttrMaxThreadsPerBlock: *to = found.maxThreadsPerBlock; break;
        case cudaDevAttrMultiProcessorCount: *to = found.multiProcessorCount; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *to = found.sharedMemPerBlock; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *to = found.sharedMemPerBlockOptin; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *to = found.sharedMemPerMultiprocessor; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *to = found.maxThreadsPerMultiProcessor; break;
        case cudaDevAttrComputeCapabilityMajor: *to = found.major; break;
        case cudaDevAttrComputeCapabilityMinor: *to = found.minor; break;
        case cudaDevAttrWarpSize: *to = found.warpSize; break;
        case cudaDevAttrClockRate: *to = 1980000; break;
        case cudaDevAttrMemoryClockRate: *to = 2619000; break;
        case cudaDevAttrMaxGridDimX: *to = found.maxGridSize[0]; break;
        case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *to = found.maxGridSize[1]; break;
        default: *to = 0;
    }
    DONE;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *to, const void *function) {
    memset(to, 0, sizeof *to);
    to->maxThreadsPerBlock = 1024, to->numRegs = 32, to->binaryVersion = to->ptxVersion = 90;
    DONE;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *to, const void *f, int size, size_t shared) { *to = 2; DONE; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *to, const void *f, int size, size_t shared, unsigned flags) { *to = 2; DONE; }

static void *number(void) { static size_t next = 4096; return (void *)__sync_add_and_fetch(&next, 16); }
cudaError_t cudaStreamCreate(cudaStream_t *to) { *to = number(); DONE; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *to, unsigned flags, int priority) { *to = number(); DONE; }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *to) { *to = 0; DONE; }

/* The time of an event is that of the host. */
static cudaError_t event(cudaEvent_t *to) { *to = calloc(1, sizeof(double)); DONE; }
cudaError_t cudaEventCreate(cudaEvent_t *to) { return event(to); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *to, unsigned flags) { return event(to); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { free(event); DONE; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *(double *)event = now.tv_sec * 1e3 + now.tv_nsec * 1e-6;
    DONE;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) { return cudaEventRecord(event, stream); }
cudaError_t cudaEventElapsedTime(float *to, cudaEvent_t start, cudaEvent_t end) { *to = *(double *)end - *(double *)start; DONE; }

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) { function(data); DONE; }
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *data, unsigned flags) { function(stream, cudaSuccess, data); DONE; }

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) { capturing++; DONE; }
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *to) { capturing = 0, *to = number(); DONE; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *to) {
    *to = capturing && stream ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    DONE;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *to, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *size) {
    cudaStreamIsCapturing(stream, to);
    if (id) *id = 1;
    if (graph) *graph = (void *)1;
    if (nodes) *nodes = NULL;
    if (edges) *edges = NULL;
    if (size) *size = 0;
    DONE;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *to, cudaGraph_t graph, unsigned long long flags) { *to = number(); DONE; }
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *size) { *size = 1; DONE; }

static int nothing(void) { return 0; }
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **to, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found) {
    *to = (void *)nothing;
    if (found) *found = cudaDriverEntryPointSuccess;
    DONE;
}
cudaError_t cudaGetSymbolAddress(void **to, const void *symbol) { static char space[65536]; *to = space; DONE; }
void **__cudaRegisterFatBinary(void *binary) { static void *handle; return &handle; }
char __cudaInitModule(void **handle) { return 1; }
cudaError_t __cudaGetKernel(void **to, const void *function) { *to = (void *)function; DONE; }
static __thread struct { dim3 grid, block; size_t shared; void *stream; } call;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    call.grid = grid, call.block = block, call.shared = shared, call.stream = stream;
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = call.grid, *block = call.block, *shared = call.shared, *(void **)stream = call.stream;
    DONE;
}
