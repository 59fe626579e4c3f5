package oom

import (
	"regexp"
	"testing"
)

// real are lines of real logs and responses, with where they were seen. Without a repository they are issues of
// ggml-org/llama.cpp.
var real = []struct{ source, text string }{
	{"#13085", "CUDA error: out of memory"},
	{"#8766, ROCm", "ROCm error: out of memory"},
	{"#19764, ROCm", "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 98988.40 MiB on device 0: cudaMalloc failed: out of memory"},
	{"vllm-project/vllm#52871", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB."},
	{"vllm-project/vllm#18446", "Cuda failure 'out of memory'"},
	{"EricLBuehler/mistral.rs#44", `Model failed with error ` + "`" + `DriverError(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")` + "`" + `. Please raise an issue.`},
	{"huggingface/text-embeddings-inference#350, answer", `{"error":"DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")","error_type":"Backend"}`},
	{"ollama/ollama#1413", "CUDA error 2 at /go/src/github.com/jmorganca/ollama/llm/llama.cpp/ggml/ggml-cuda.cu:4856: out of memory"},
	{"tensorflow/tensorflow#17669", "ResourceExhaustedError (see above for traceback): OOM when allocating tensor with shape[1,5095,3729,3]"},
	{"#9701, Metal", "error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"},
	{"#29270, Vulkan", "ggml_vulkan: Device memory allocation of size 369827840 failed."},
	{"#29270, Vulkan", "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory"},
	{"#18160, Vulkan", "ggml_vulkan: Requested buffer size exceeds device buffer size limit: ErrorOutOfDeviceMemory"},
	{"#27873, Vulkan", "/src/ggml/src/ggml-vulkan/ggml-vulkan.cpp:9294: Requested preallocation size is too large"},
	{"#18160", "ggml_gallocr_reserve_n_impl: failed to allocate Vulkan0 buffer of size 8753520640"},
	{"#18160", "graph_reserve: failed to allocate compute buffers"},
	{"#18160", "llama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers"},
	{"#7366", "llama_model_load: error loading model: unable to allocate backend buffer"},
	{"#9476, SYCL", "Native API failed. Native API returns: -6 (PI_ERROR_OUT_OF_HOST_MEMORY) -6 (PI_ERROR_OUT_OF_HOST_MEMORY)"},
	{"#25502, SYCL", "Native API failed. Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"},
	{"#21747, SYCL", "Error (ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"},
	{"ggml-org/ggml#1072, SYCL", "Native API failed. Native API returns: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)"},
	{"ggml-sycl.cpp", "ggml_backend_sycl_buffer_type_alloc_buffer: can't allocate 3503030272 Bytes of memory on device"},
	{"#25304", "CUDA error: the resource allocation failed"},
	{"ollama/ollama#6139", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED"},
	{"llama-server 0.10068.0 under a memory limit", "0.01.323.464 E ggml_aligned_malloc: insufficient memory (attempted to allocate 11718.75 MB)"},
	{"the same", "0.01.323.534 E ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 12288000000"},
	{"the same", "0.01.323.553 E alloc_tensor_range: failed to allocate CPU buffer of size 12288000000"},
	{"the same", "0.01.348.850 E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache"},
	{"ggml.c, ggml_status_to_string", "GGML status: error (failed to allocate memory)"},
	{"gguf.cpp", "gguf_init_from_reader: encountered bad_alloc error while reading key 3"},
	{"libstdc++", "terminate called after throwing an instance of 'std::bad_alloc'"},
	{"Rust's alloc", "memory allocation of 4294967296 bytes failed"},
	{"errno(3)", "mmap failed: Cannot allocate memory"},
	{"vllm/v1/core/kv_cache_utils.py", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."},
	{"vllm/v1/worker/gpu_worker.py", "ValueError: Free memory on device (3.1/23.7 GiB) on startup is less than desired GPU memory utilization (0.9, 21.33 GiB)."},
	{"vllm/v1/worker/cpu_worker.py", "ValueError: Available memory on node 0 (3.1/23.7 GiB) on startup is less than desired CPU memory utilization (0.9, 21.33 GiB)."},
	{"vllm/v1/worker/cpu_worker.py", "ValueError: Available memory on node 0 (3.1/23.7 GiB) on kv cache allocation is less than requested memory for kv (4.0/6.0 GiB)."},
	{"tt-metal#30225, vLLM", "RuntimeError: [enforce fail at alloc_cpu.cpp:119] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4398046511104 bytes."},
	{"Papers-in-100-Lines-of-Code#9", "DefaultCPUAllocator: not enough memory: you tried to allocate 1981808640 bytes."},
	{"stand-in", `{"error":{"message":"failed to allocate compute buffers: out of memory"}}`},
}

func TestOutOfMemoryLines(t *testing.T) {
	for _, r := range real {
		if !IsOutOfMemory(r.text) || !IsOutOfMemory("a line before\n"+r.text+"\nand one after") {
			t.Errorf("not recognized, of %s: %s", r.source, r.text)
		}
	}
	for _, p := range patterns {
		re := regexp.MustCompile(p)
		seen := false
		for _, r := range real {
			seen = seen || re.MatchString(r.text)
		}
		if !seen {
			t.Errorf("no real line has %s", p)
		}
	}
}

// TestOtherErrorsAreNotOutOfMemory: what clients or the engine got wrong in another way is not taken for a lack of
// memory.
func TestOtherErrorsAreNotOutOfMemory(t *testing.T) {
	for _, r := range []struct{ source, text string }{
		{"llama-server", `{"error":{"code":500,"message":"input (900 tokens) is too large to process. increase the physical batch size (current batch size: 512)","type":"server_error"}}`},
		{"llama-server", "Context size has been exceeded."},
		{"llama-server", "request (9412 tokens) exceeds the available context size (8192 tokens), try increasing it"},
		{"llama-server", "Invalid input batch."},
		{"llama-server", "decode: failed to find a memory slot for batch of size 512"},
		{"llama-server", "failed to find free space in the KV cache, retrying with smaller batch size, off = 0, n_batch = 256, ret = 1"},
		{"llama-server", "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"},
		{"text-embeddings-inference", `{"error":"Input validation error: inputs cannot be empty","error_type":"Validation"}`},
		{"text-embeddings-inference", `{"error":"Input validation error: inputs must have less than 512 tokens. Given: 600","error_type":"Validation"}`},
		{"text-embeddings-inference#61", `{"error":"Backend error: Inference error: CublasError(CUBLAS_STATUS_NOT_SUPPORTED)","error_type":"Backend"}`},
		{"#10080", "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED"},
		{"containers/ramalama#732", "ROCm error: invalid device function"},
		{"containers/ramalama#732", "Memory critical error by agent node-0 (Agent handle: 0x10a3dc10) on address 0x7f3c19800000. Reason: Memory in use."},
		{"ggml-cuda.cu", "CUDA error: an illegal memory access was encountered"},
		{"#8886", "error: Ignored (for causing prior/excessive GPU errors) (00000004:kIOAccelCommandBufferCallbackErrorSubmissionsIgnored)"},
		{"#11812", "Native API failed. Native API returns: 20 (UR_RESULT_ERROR_DEVICE_LOST)"},
		{"#13248", "terminate called after throwing an instance of 'vk::DeviceLostError'"},
		{"#9629, went on", "ggml_cuda_host_malloc: failed to allocate 1900.00 MiB of pinned memory: invalid argument"},
		{"#7130, went on", "WARNING: failed to allocate 0.00 MB of pinned memory"},
		{"#9271, went on", "ggml_vulkan: Failed to allocate pinned memory (vk::Device::allocateMemory: ErrorOutOfDeviceMemory)"},
		{"#7130, went on", "ggml_backend_sched_alloc_splits: failed to allocate graph, reserving"},
		{"abetlen/llama-cpp-python#618, went on", "warning: failed to mlock 73728000-byte buffer (after previously locking 0 bytes): Cannot allocate memory"},
		{"ikawrakow/ik_llama.cpp#655, went on", "warning: failed to munlock buffer: Cannot allocate memory"},
		{"llama-server, went on", "srv  prompt_save: failed to allocate memory for prompt cache state: std::bad_alloc"},
		{"ggml-sycl.cpp, went on", "reorder_qw: failed to allocate 1024 bytes for reorder temp buffer, skipping reorder"},
		{"llama-context.cpp, went on", "llama_context: compute buffer allocation failed, retrying without pipeline parallelism"},
		{"a client", `{"error":"the model has no memory of earlier requests, out of scope"}`},
		{"a client", "a room with a BOOM and a zoom"},
	} {
		if IsOutOfMemory(r.text) {
			t.Errorf("taken for a lack of memory, of %s: %s", r.source, r.text)
		}
	}
}

// TestFailed: the size of the allocation that failed, of the real lines that name one.
func TestFailed(t *testing.T) {
	for text, want := range map[string]int64{
		"allocating 98988.40 MiB on device 0: cudaMalloc failed: out of memory":                                                       98988 << 20,
		"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB.":                                                    96 << 20,
		"ggml_vulkan: Device memory allocation of size 369827840 failed.":                                                             369827840,
		"ggml_gallocr_reserve_n_impl: failed to allocate Vulkan0 buffer of size 8753520640":                                           8753520640,
		"ggml_aligned_malloc: insufficient memory (attempted to allocate 11718.75 MB)\nfailed to allocate buffer of size 12288000000": 12288000000,
		"can't allocate 3503030272 Bytes of memory on device":                                                                         3503030272,
		"memory allocation of 4294967296 bytes failed":                                                                                4294967296,
		"DefaultCPUAllocator: can't allocate memory: you tried to allocate 90177536 bytes. Error code 12":                             90177536,
		"CUDA error: out of memory":                                                                0,
		"failed to allocate buffer of size 99999999999999999999":                                   0,
		"loaded, buffer of size 12288000000":                                                       0,
		"ggml_cuda_host_malloc: failed to allocate 1900.00 MiB of pinned memory: invalid argument": 0,
	} {
		if got := FailedAllocation(text); got>>20 != want>>20 {
			t.Errorf("%d bytes, want %d, of %s", got, want, text)
		}
	}
}
