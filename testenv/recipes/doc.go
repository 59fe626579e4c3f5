// Package recipes has tests only. Each shipped recipe whose engine `make engines` or `make engines-all` has installed
// meets that engine: it is loaded through a real gateway, answers, and makes room for the next. Tests of an engine that
// is not installed are skipped.
//
// What went wrong with these engines once, and the tests that find it again, here and without an engine:
//
//	another program on an engine's port    TestStrangerOnThePort; engine.TestStrangerOnThePortFailsTheLoad
//	whisper.cpp's text and translations    TestFormatsOfSpeech
//	FLAC taken for a damaged MP3           TestLargeFLAC
//	vLLM's lengths, memory and KV cache    TestEngines/vllm, TestEmbeddings/vllm-embedding; plan.TestMetadataOfFolders,
//	                                       plan.TestPlansMatchGoldenFiles, host.TestOutOfMemoryRaisesTheNeed
//	scores of Text Embeddings Inference    TestRerankOfTEI; httpapi.TestRerankDialects
//	a failed load that hides its cause     TestFailedLoads; engine.TestFailedLoadHasItsCause, engine.TestLoadTimeouts,
//	                                       httpapi.TestLogs, redact.TestFailure
//	Python in the closed sandbox           every test but those of vLLM; sandbox.TestPythonEnvironments
//	memory of PyTorch in a first plan      TestEngines; plan.TestMetadataOfFolders
//	settings of images, unserved routes    TestEngines/sd; httpapi.TestImageSettings, api.TestNormalizeError,
//	                                       host.TestFatalFailureClearsNothing
package recipes
