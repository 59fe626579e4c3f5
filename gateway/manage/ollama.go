package manage

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/models"
	"reveille/gateway/web"
	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/state"
)

// ollamaLevel is the version that the Ollama dialect reports. Clients compare it with the release that brought what
// they need. They refuse to work with an older one, or with something that is not a version.
const ollamaLevel = "0.16.1"

// OllamaVersion is GET /api/version.
func (s *Service) OllamaVersion(r *web.Request) error {
	return r.Reply(fasthttp.StatusOK, map[string]string{"version": ollamaLevel})
}

// ollamaModel is what every listing of the dialect shows of a model.
type ollamaModel struct {
	Name    string        `json:"name"`
	Model   string        `json:"model"` // the same
	Size    int64         `json:"size"`  // bytes, 0 if unknown
	Digest  string        `json:"digest"`
	Details ollamaDetails `json:"details"`
}

// ollamaDetails is what can be derived from a model's names and checkpoint; the rest is empty.
type ollamaDetails struct {
	Parent       string   `json:"parent_model"` // always empty
	Format       string   `json:"format"`       // gguf or safetensors
	Family       string   `json:"family"`
	Families     []string `json:"families"` // the family
	Parameters   string   `json:"parameter_size"`
	Quantization string   `json:"quantization_level"`
}

// ollamaTag is a model that can be requested.
type ollamaTag struct {
	ollamaModel
	Modified time.Time `json:"modified_at"`
}

// ollamaLoaded is a loaded model. Its size is the memory it takes, if its runner reports that.
type ollamaLoaded struct {
	ollamaModel
	Expires time.Time `json:"expires_at"`
	VRAM    int64     `json:"size_vram"`      // the part of its size that is not in the host's own memory
	Context int64     `json:"context_length"` // tokens, 0 if unknown
}

// OllamaTags is GET /api/tags: the models of GET /models.
func (s *Service) OllamaTags(r *web.Request) error {
	_, _ = s.registry.Fresh() // states come from the mirror
	list := []ollamaTag{}
	cat := s.cfg.Catalog()
	for _, m := range cat.Models {
		if w := s.registry.WeightsOf(cat, m); servable(m, w.There) && r.Key.Allows(m.ID) {
			modified := time.Unix(cmp.Or(w.Created, s.started.Unix()), 0).UTC()
			list = append(list, ollamaTag{s.ollamaModel(m, w, w.Bytes), modified})
		}
	}
	return r.Reply(fasthttp.StatusOK, map[string]any{"models": list})
}

// OllamaPS is GET /api/ps: the loaded models, the most recently used first. Of several copies it shows the one used
// last.
func (s *Service) OllamaPS(r *web.Request) error {
	snap, _ := s.registry.Fresh()
	cat := s.cfg.Catalog()
	list := []ollamaLoaded{}
	seen := map[string]bool{}
	for _, l := range s.loaded(r, snap, cat) {
		if !seen[l.Name] {
			seen[l.Name] = true
			list = append(list, s.ollamaLoaded(cat, l, snap.Hosts[l.Runner].Models[l.Name]))
		}
	}
	return r.Reply(fasthttp.StatusOK, map[string]any{"models": list})
}

func (s *Service) ollamaLoaded(cat *catalog.Catalog, l LoadedModel, rec *state.ModelRecord) ollamaLoaded {
	m, listed := cat.Model(l.Name)
	if !listed { // it has left the catalog since
		m = &catalog.Model{ID: l.Name, Checkpoint: l.Checkpoint, Recipe: l.Recipe}
	}
	w := s.registry.WeightsOf(cat, m)
	out := ollamaLoaded{ollamaModel: s.ollamaModel(m, w, cmp.Or(rec.Memory, w.Bytes)), Expires: time.Now().AddDate(100, 0, 0).UTC()} // the dialect has no value for never
	if l.Expires != nil {
		out.Expires = time.UnixMicro(int64(*l.Expires * 1e6)).UTC()
	}
	if on, err := policy.ParseDevices(l.Device); err == nil && on.Overlaps(policy.GPU|policy.NPU) {
		out.VRAM = rec.Memory
	}
	var o recipe.Options
	if json.Unmarshal(l.Options, &o) == nil {
		out.Context, _ = s.registry.ContextOf(m, w, o)
	}
	return out
}

func (s *Service) ollamaModel(m *catalog.Model, w models.Weights, size int64) ollamaModel {
	name, tagged := m.ID, m.ID+latest
	owner := cmp.Or(s.registry.Owner(tagged), s.registry.Tables.Of(state.Aliases)[tagged], m.ID)
	if !strings.Contains(name, ":") && owner == m.ID {
		name = tagged
	}
	return ollamaModel{Name: name, Model: name, Size: size, Digest: ollamaDigest(m), Details: ollamaDetailsOf(m, w)}
}

// latest is the tag that the dialect's clients expect in every name, and add to one without a tag.
const latest = ":latest"

// ollamaDigest stands for the digest of a model's manifest, by which this dialect identifies models. It changes when
// the catalog defines the model differently.
func ollamaDigest(m *catalog.Model) string {
	sum := sha256.Sum256([]byte(m.ID + "\x00" + m.Checkpoint + "\x00" + m.MMProj))
	return hex.EncodeToString(sum[:])
}

func ollamaDetailsOf(m *catalog.Model, w models.Weights) ollamaDetails {
	out := ollamaDetails{Format: formatOf(m, w), Family: w.Architecture, Families: []string{}}
	if out.Family != "" {
		out.Families = append(out.Families, out.Family)
	}
	names := []string{weightsName(m.Checkpoint), catalog.ParseCheckpoint(m.Checkpoint).Repo, m.ID}
	out.Parameters = strings.ReplaceAll(strings.ToUpper(firstPart(parametersRE, names)), "X", "x") // 8x7B
	out.Quantization = strings.ToUpper(firstPart(quantizationRE, names))
	return out
}

// formatOf returns the format of a model's weights, "" if unknown.
func formatOf(m *catalog.Model, w models.Weights) string {
	c := catalog.ParseCheckpoint(m.Checkpoint)
	switch ext := strings.ToLower(path.Ext(c.Path)); {
	case ext == ".gguf":
		return "gguf"
	case ext == ".safetensors", w.Folder, c.Scheme == catalog.SchemeHF && c.Path == "":
		return "safetensors"
	}
	return ""
}

// weightsName returns the last part of the location of a model's weights, "" if there is none. It contains nothing
// about a host.
func weightsName(checkpoint string) string {
	c := catalog.ParseCheckpoint(checkpoint)
	place := cmp.Or(c.Path, c.Repo)
	if place == "" {
		return ""
	}
	return path.Base(strings.ReplaceAll(place, `\`, "/"))
}

// parametersRE and quantizationRE recognize parts of a name: gemma-3-270m-q4_k_m.gguf.
var (
	parametersRE   = regexp.MustCompile(`(?i)(?:^|[-_:/ ])((?:\d+x)?\d+(?:\.\d+)?[mbt])(?:$|[-_:/. ])`)
	quantizationRE = regexp.MustCompile(`(?i)(?:^|[-_:/. ])(i?q\d(?:_[a-z0-9]{1,3}){0,3}|tq\d_\d|mxfp4|nvfp4|bf16|fp?16|fp?32|fp8|int[48]|awq|gptq)(?:$|[-_:/. ])`)
)

// firstPart returns the part from the first name that has one, "" if none has.
func firstPart(re *regexp.Regexp, names []string) string {
	for _, name := range names {
		if m := re.FindStringSubmatch(name); m != nil {
			return m[1]
		}
	}
	return ""
}

// ollamaShown is the response of POST /api/show.
type ollamaShown struct {
	Modelfile    string         `json:"modelfile"`
	Parameters   string         `json:"parameters"` // num_ctx, if the catalog or a call sets it
	Template     string         `json:"template"`   // always empty: engines keep their templates to themselves
	Details      ollamaDetails  `json:"details"`
	Info         map[string]any `json:"model_info"`
	Capabilities []string       `json:"capabilities"`
}

// OllamaShow is POST /api/show: one model under any of its names.
func (s *Service) OllamaShow(r *web.Request) error {
	m, err := s.namedModel(r)
	if err != nil {
		return err
	}
	_, _ = s.registry.Fresh() // the options in force come from the mirror
	cat := s.cfg.Catalog()
	options := s.registry.Effective(cat, m)
	w := s.registry.WeightsOf(cat, m)
	details := ollamaDetailsOf(m, w)
	_, context := s.registry.ContextOf(m, w, options)
	parameters := ""
	if n, _ := options["ctx_size"].(int64); n > 0 {
		parameters = fmt.Sprintf("%-30s %d", "num_ctx", n)
	}
	r.Ctx.Response.Header.Set(api.HeaderModel, m.ID)
	return r.Reply(fasthttp.StatusOK, ollamaShown{
		Modelfile:  fmt.Sprintf("# Modelfile of %s, generated from the gateway's catalog\nFROM %s\n", m.ID, cmp.Or(weightsName(m.Checkpoint), m.ID)),
		Parameters: parameters, Details: details, Info: ollamaInfo(m, details.Family, context), Capabilities: capabilities(m, w),
	})
}

// ollamaInfo returns what is known of a model under the keys of GGUF metadata. Entries of an unknown architecture have
// the key "general".
func ollamaInfo(m *catalog.Model, family string, context int64) map[string]any {
	info := map[string]any{"general.basename": m.ID}
	if family != "" {
		info["general.architecture"] = family
	}
	if context > 0 {
		info[cmp.Or(family, "general")+".context_length"] = context
	}
	return info
}

// capabilities returns what a model can be used for, in the dialect's words. Its labels and its chat template give
// those that depend on its training.
func capabilities(m *catalog.Model, w models.Weights) []string {
	if m.Type == policy.Embedding {
		return []string{"embedding"}
	}
	if m.Type != policy.LLM {
		return []string{}
	}
	labeled := func(names ...string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return slices.Contains(m.Labels, name) })
	}
	out := []string{"completion"}
	if m.MMProj != "" || labeled("vision") {
		out = append(out, "vision")
	}
	if w.Tools || labeled("tool-calling", "tools") {
		out = append(out, "tools")
	}
	if labeled("reasoning", "thinking") {
		out = append(out, "thinking")
	}
	return out
}

// OllamaPull is POST /api/pull, for models in the catalog.
func (s *Service) OllamaPull(r *web.Request) error {
	m, err := s.namedModel(r)
	if err != nil {
		return err
	}
	return s.servePull(r, m, pullLines(r, ollamaDigest(m)))
}

// ollamaStep is a line of a streamed pull.
type ollamaStep struct {
	Status string `json:"status"`
	Digest string `json:"digest,omitempty"`
	Total  int64  `json:"total,omitempty"`     // bytes
	Done   int64  `json:"completed,omitempty"` // bytes
}

// pullLines is the format of the Ollama dialect, which repeats its last line when there is nothing new.
func pullLines(r *web.Request, digest string) pullFormat {
	id, dialect, last := r.ID, r.Match.Dialect, ollamaStep{Status: "success"}
	say := func(b []byte, p pullState) []byte {
		step := ollamaStep{"pulling " + digest[:12], "sha256:" + digest, p.total, p.done}
		if p.total == 0 {
			step = ollamaStep{Status: "pulling manifest"}
		}
		switch {
		case p.err != nil:
			return append(b, dialect.StreamError(api.As(p.err), id)...)
		case p.finished && p.total > 0:
			b = appendLine(b, step)
			fallthrough
		case p.finished:
			step = last
		}
		return appendLine(b, step)
	}
	return pullFormat{media: api.Ollama.StreamType(), encode: say, respond: last}
}

func appendLine(b []byte, step ollamaStep) []byte {
	text, _ := json.Marshal(step) // texts and numbers always marshal
	return append(append(b, text...), '\n')
}

// OllamaDelete is DELETE /api/delete, see remove. A name that was given at run time is removed alone.
func (s *Service) OllamaDelete(r *web.Request) error {
	given, err := r.ModelName()
	if err != nil {
		return err
	}
	m, err := s.namedModel(r)
	if err != nil {
		return err
	}
	name, aliases := given.String(), s.registry.Tables.Of(state.Aliases)
	if !s.registry.IsName(name) {
		name = strings.TrimSuffix(name, latest)
	}
	if !s.registry.IsName(name) {
		name = aliasIn(aliases, name) // in another case
	}
	if _, alias := aliases[name]; alias && s.registry.Owner(name) == "" {
		err = s.registry.Tables.Set(context.Background(), state.Aliases, name, "")
	} else {
		err = s.remove(r, m)
	}
	if err != nil {
		return r.UnlessClientGone(err)
	}
	r.Send(fasthttp.StatusOK, web.TextPlain, nil)
	return nil
}
