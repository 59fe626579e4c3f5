// Package oom knows the words by which engines say that memory ran out, in their logs and in their responses.
package oom

import (
	"regexp"
	"strings"
)

// patterns are patterns of lines that say that memory ran out, in the order of where they come from. Names without a
// repository are files and functions of llama.cpp. The test has a real line for each.
var patterns = []string{
	// cudaGetErrorString by way of ggml_cuda_error, its HIP and MUSA builds alike; PyTorch, NCCL, candle
	`(?i:out of memory)`,
	// TensorFlow
	`\bOOM\b`,
	// PyTorch's exception; Metal's kIOGPUCommandBufferCallbackErrorOutOfMemory
	`OutOfMemory`,
	// vk::Result of vulkan.hpp: ggml-vulkan.cpp, ggml_vk_create_buffer
	`ErrorOutOf(Device|Host|Pool)Memory`,
	// ggml-vulkan.cpp, ggml_vk_create_buffer_check; Rust's alloc
	`(?i:memory allocation of .{1,40} failed)`,
	// ggml-vulkan.cpp, where an operation needs more than a buffer of the device can hold
	`Requested preallocation size is too large`,
	// result codes of CUDA's driver (candle: TEI, mistral.rs), Vulkan, SYCL's unified runtime and Level Zero
	`_OUT_OF_(DEVICE_|HOST_|POOL_)?MEMORY\b`,
	// SYCL for memory that other allocations hold; its predecessor's name starts with PI
	`\b(UR_RESULT|PI)_ERROR_OUT_OF_RESOURCES\b`,
	// ggml-sycl.cpp, ggml_backend_sycl_buffer_type_alloc_buffer
	`can't allocate \d+ Bytes of memory`,
	// PyTorch's CPU allocator, on Windows "not enough memory": vLLM and others on a processor
	`DefaultCPUAllocator: (can't allocate|not enough) memory`,
	// ggml.c, ggml_aligned_malloc; Metal's command buffers
	`(?i:insufficient memory)`,
	// ggml-alloc.c, ggml-backend.cpp, ggml-metal-device.m, llama-context.cpp, llama-kv-cache.cpp; ONNX Runtime
	`(?i:failed to allocate)`,
	// llama-model.cpp
	`(?i:unable to allocate .*buffer)`,
	// cuBLAS, whose handles need device memory: older names, and cublasGetStatusString
	`CUBLAS_STATUS_ALLOC_FAILED|the resource allocation failed`,
	// C++'s operator new, in gguf.cpp and elsewhere
	`\bbad_alloc\b`,
	// ENOMEM
	`(?i:cannot allocate memory)`,
	// vLLM, which does not find its part of the memory free; its recipe has what it says of too small a part
	`No available memory for the cache blocks`,
	`less than (desired [GC]PU memory utilization|requested memory for kv)`,
}

// harmless are patterns of lines that engines go on after, although words match them.
var harmless = []string{
	`(?i:pinned memory)`,               // ggml-cuda.cu, ggml-vulkan.cpp, ggml-sycl.cpp: ordinary memory is taken instead
	`(?i:failed to munlock|mlock )`,    // llama-mmap.cpp: a limit of the system's
	`failed to allocate graph, reserv`, // ggml-backend.cpp: it reserves more, and says so if that fails
	`skipping reorder`,                 // ggml-sycl.cpp
	`prompt cache state`,               // llama-server: the prompt is not cached
}

var patternsRE, harmlessRE = anyOf(patterns), anyOf(harmless)

func anyOf(patterns []string) *regexp.Regexp {
	return regexp.MustCompile(strings.Join(patterns, "|"))
}

// IsOutOfMemory reports whether one of a text's lines says that memory ran out.
func IsOutOfMemory(text string) bool {
	if !patternsRE.MatchString(text) {
		return false
	}
	for line := range strings.Lines(text) {
		if patternsRE.MatchString(line) && !harmlessRE.MatchString(line) {
			return true
		}
	}
	return false
}
