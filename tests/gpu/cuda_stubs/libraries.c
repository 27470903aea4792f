/* What of cuBLAS and cuDNN has to say more than that it is done. */
#include <stddef.h>

/* Each handle is another one: PyTorch keeps a workspace for each. */
int cublasCreate_v2(void **to) { static size_t next = 16; *to = (void *)__sync_add_and_fetch(&next, 16); return 0; }
int cublasLtCreate(void **to) { *to = (void *)16; return 0; }
int cublasGetVersion_v2(void *handle, int *to) { *to = 130100; return 0; }
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *a, void *b, void *c, void *d, void *preference,
                                   int asked, void *results, int *found) {
    *found = 1; /* of `cublasLtMatmulHeuristicResult_t`, 64 bytes of algorithm, then the bytes of the workspace */
    *(size_t *)((char *)results + 64) = 0;
    return 0;
}
size_t cublasLtGetVersion(void) { return 130100; }
size_t cublasLtGetCudartVersion(void) { return 13000; }
size_t cudnnGetVersion(void) { return 91900; }
size_t cudnnGetCudartVersion(void) { return 13000; }
int cudnnCreate(void **to) { *to = (void *)16; return 0; }
const char *cudnnGetErrorString(int status) { return "an error of the cuDNN stub"; }
int cusparseCreate(void **to) { *to = (void *)16; return 0; }
int cusolverDnCreate(void **to) { *to = (void *)16; return 0; }
int ncclGetVersion(int *to) { *to = 22809; return 0; }
/* There is no engine for any graph: whoever asks for one gets an error that PyTorch raises. */
int cudnnBackendCreateDescriptor(int type, void **to) { *to = NULL; return 3000; }
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int ops, void *activation, void *x, size_t *to) { *to = 0; return 0; }
int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle, int mode, int ops, void *x, void *z, void *y, void *scale, void *activation, size_t *to) { *to = 0; return 0; }
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode, int ops, void *x, void *y, void *dy, void *dz, void *dx, void *scale, void *activation, size_t *to) { *to = 0; return 0; }
int cudnnGetProperty(int type, int *to) { *to = type == 0 ? 9 : type == 1 ? 19 : 0; return 0; }
