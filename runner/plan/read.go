package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"reveille/infra/modelfile"
)

// maxConfig bounds a config.json, in bytes.
const maxConfig = 4 << 20

// errNoMetadata: the checkpoint has no readable metadata, for example because it is the name of a model in a registry.
var errNoMetadata = errors.New("it has no readable metadata")

// Read reads the metadata of a checkpoint on this host: a GGUF file of any name, or a folder with config.json and
// weights. It reads only headers, so it takes milliseconds for a model of any size, and its cost is bounded
// whatever the file holds.
func Read(checkpoint string) (Meta, error) {
	info, err := os.Stat(checkpoint)
	switch {
	case err != nil:
		return Meta{}, err
	case info.IsDir():
		return readFolder(checkpoint)
	case modelfile.IsGGUF(checkpoint):
		return readGGUF(checkpoint)
	}
	return Meta{Weights: info.Size()}, errNoMetadata
}

// config holds the fields of a config.json that matter. Their names differ between families of models.
type config struct {
	Architectures []string `json:"architectures"`
	ModelType     string   `json:"model_type"`
	Layers        int      `json:"num_hidden_layers"`
	LayersGPT     int      `json:"n_layer"`
	Hidden        int      `json:"hidden_size"`
	HiddenGPT     int      `json:"n_embd"`
	Heads         int      `json:"num_attention_heads"`
	HeadsGPT      int      `json:"n_head"`
	HeadsKV       int      `json:"num_key_value_heads"`
	HeadDim       int      `json:"head_dim"`
	Vocab         int      `json:"vocab_size"`
	Positions     int      `json:"max_position_embeddings"`
	PositionsGPT  int      `json:"n_positions"`
	Latent        int      `json:"kv_lora_rank"`
	Rotated       int      `json:"qk_rope_head_dim"`
	Window        int      `json:"sliding_window"`
	LayerTypes    []string `json:"layer_types"`
	Scaling       any      `json:"rope_scaling"`
	// Text is the language model's part in models of several modalities.
	Text *config `json:"text_config"`
}

func readFolder(dir string) (Meta, error) {
	m := Meta{Format: "safetensors", Weights: weightsOf(dir, true)}
	f, err := os.Open(filepath.Join(dir, "config.json"))
	if err != nil {
		return m, fmt.Errorf("%w: %w", errNoMetadata, err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxConfig))
	if err != nil {
		return m, err
	}
	var c config
	if err := json.Unmarshal(raw, &c); err != nil {
		return m, fmt.Errorf("config.json: %w", err)
	}
	err = c.fill(&m)
	if n := trainedLength(dir); n > 0 && n < m.Positions {
		m.Positions = n
	}
	return m, err
}

// trainedLength returns the length of texts that sentence-transformers cuts to, 0 if unknown. vLLM refuses a longer
// one, although the model has positions for it.
func trainedLength(dir string) (n int) {
	files, _ := filepath.Glob(filepath.Join(dir, "sentence_*_config.json")) // bert, roberta, …
	for _, file := range files {
		var c struct {
			Length int `json:"max_seq_length"`
		}
		if raw, err := os.ReadFile(file); err == nil && json.Unmarshal(raw, &c) == nil {
			n = max(n, c.Length)
		}
	}
	return n
}

// formats are the formats of weights, as beginnings and extensions of file names, in the order in which engines prefer
// them. What a folder has in a second format are the same weights again.
var formats = [][2]string{
	{"", ".safetensors"}, {"openvino_", ".bin"}, {"", ".gguf"}, {"", ".bin"}, {"", ".onnx"}, {"", ".pt"}, {"", ".pth"}, {"", ".ckpt"},
}

// training matches the state of a training, which no engine loads.
var training = regexp.MustCompile(`^(training_args|optimizer|scheduler|scaler|rng_state)\b`)

// weightsOf returns the size of a folder's weights in bytes. If it has none itself, as for a pipeline of diffusers, its
// subfolders count.
func weightsOf(dir string, subfolders bool) (sum int64) {
	files, _ := os.ReadDir(dir)
	sizes := map[string]int64{}
	for _, f := range files {
		if info, err := os.Stat(filepath.Join(dir, f.Name())); err == nil && info.Mode().IsRegular() && !training.MatchString(f.Name()) {
			sizes[f.Name()] = info.Size()
		}
	}
	for _, format := range formats {
		for name, size := range sizes {
			stem, data, ok := strings.Cut(name, format[1])
			isWeights := ok && (data == "" || format[1] == ".onnx") && strings.HasPrefix(name, format[0])
			if isWeights && !isVariant(stem, format[1], sizes) {
				sum += size
			}
		}
		if sum > 0 {
			return sum
		}
	}
	for _, f := range files {
		if subfolders && f.IsDir() && !strings.HasPrefix(f.Name(), ".") {
			sum += weightsOf(filepath.Join(dir, f.Name()), false)
		}
	}
	return sum
}

// isVariant reports whether a folder has the weights of a file in another one as well: model_q4.onnx repeats model.onnx,
// consolidated.safetensors the shards of model-00001-of-00002.safetensors.
func isVariant(stem, ext string, sizes map[string]int64) bool {
	for i, c := range stem {
		if _, ok := sizes[stem[:i]+ext]; ok && strings.ContainsRune("_.-", c) {
			return true
		}
	}
	if !strings.HasPrefix(stem, "consolidated") {
		return false
	}
	for name := range sizes {
		if strings.HasPrefix(name, "model") && strings.HasSuffix(name, ext) {
			return true
		}
	}
	return false
}

// fill copies c's values into m.
func (c *config) fill(m *Meta) error {
	t := c
	if c.Text != nil {
		t = c.Text
	}
	m.Arch = c.ModelType
	m.Layers, m.Hidden, m.Heads = max(t.Layers, t.LayersGPT, 0), max(t.Hidden, t.HiddenGPT, 0), max(t.Heads, t.HeadsGPT, 0)
	m.Vocab, m.Positions, m.Window = max(t.Vocab, 0), max(t.Positions, t.PositionsGPT, 0), max(t.Window, 0)
	m.Scaled = t.Scaling != nil
	for _, a := range c.Architectures {
		m.Causal = m.Causal || strings.HasSuffix(a, "ForCausalLM") || strings.HasSuffix(a, "ForConditionalGeneration")
	}
	if m.Layers > maxLayers || max(m.Hidden, m.Heads, m.Vocab, m.Positions, t.HeadsKV, t.HeadDim, t.Latent, t.Rotated) > maxInt/2 {
		return errors.New("config.json: a size is out of range")
	}
	if m.Heads == 0 || m.Layers == 0 {
		return nil
	}
	width := int64(orDefault(t.HeadsKV, m.Heads)) * int64(orDefault(t.HeadDim, m.Hidden/m.Heads))
	for i := range m.Layers {
		to := &m.Cache
		if i < len(t.LayerTypes) {
			switch t.LayerTypes[i] {
			case "sliding_attention":
				if m.Window > 0 {
					to = &m.Windowed
				}
			case "linear_attention":
				continue // its state does not grow with the context
			}
		}
		if t.Latent > 0 {
			to.K += int64(t.Latent + max(t.Rotated, 0))
			continue
		}
		to.K += width
		to.V += width
	}
	return nil
}
