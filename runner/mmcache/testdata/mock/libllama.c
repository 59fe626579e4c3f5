/* The one function of libllama that the mock needs. */
#include <stdint.h>

__attribute__((visibility("default"))) int32_t llama_model_n_embd_inp(const void *model);

int32_t llama_model_n_embd_inp(const void *model) { return *(const int32_t *)model; }
