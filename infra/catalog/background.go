package catalog

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"reveille/infra/recipe"
)

// A BackgroundRule recognizes requests that no person waits for, such as for the title of a chat. All its conditions
// must hold. In patterns, * stands for any text.
type BackgroundRule struct {
	// Client stands for what a client sends in the background: open-webui, librechat, continue or claude-code.
	Client string `json:"client,omitempty"`
	// Path is a pattern for the path of the request.
	Path string `json:"path,omitempty"`
	// Headers are patterns for headers of the request, by name.
	Headers map[string]string `json:"headers,omitempty"`
	// Metadata are patterns for members of the body's metadata, by name.
	Metadata map[string]string `json:"metadata,omitempty"`
	// LastMessage are texts with one of which the last message or the prompt begins.
	LastMessage recipe.List[string] `json:"last_message,omitempty"`
	// Then says what happens if the model is not loaded: another loaded model of its type serves the request (loaded,
	// the default), the request waits until somebody else has the model loaded (wait), or it is refused (refuse).
	Then BackgroundPolicy `json:"then,omitempty"`
}

// BackgroundPolicy says what happens to a request in the background whose model is not loaded.
type BackgroundPolicy string

// Values of [BackgroundRule.Then]; "" means that a request does not run in the background.
const (
	BackgroundLoaded BackgroundPolicy = "loaded"
	BackgroundWait   BackgroundPolicy = "wait"
	BackgroundRefuse BackgroundPolicy = "refuse"
)

// backgroundMessages are how the last messages begin that clients send in the background: titles, tags, follow-ups,
// completions while typing.
var backgroundMessages = map[string]recipe.List[string]{
	"open-webui": { // 0.12.4, and prompts of 0.6
		"### Task:\nGenerate a concise", "### Task:\nGenerate 1-3 broad tags", "### Task:\nPredict 3-5 useful messages",
		"### Task:\nSuggest 3-5 relevant follow-up", "### Task:\nYou are an autocompletion system", "Your task is to reflect the speaker's likely facial expression",
	},
	"librechat": { // @librechat/agents 3.2.21
		"Analyze this conversation and provide:\n1. The detected language", "Provide a concise, 5-word-or-less title",
	},
	"continue": { // @continuedev/cli 1.5.47; completions while typing have no mark
		"Given the following... please reply with a title for the chat",
	},
	"claude-code": { // 2.1.332: titles, suggestions of the next message, recaps
		"<session>\n", "[SUGGESTION MODE: Suggest what the user might naturally type next", "The user stepped away and is coming back. Recap",
	},
}

// background checks the rules and completes them.
func (c *checker) background() {
	for i := range c.Background {
		r, p := &c.Background[i], []string{"background", strconv.Itoa(i)}
		if r.Then == "" {
			r.Then = BackgroundLoaded
		}
		oneOf(c, append(p, "then"), r.Then, BackgroundLoaded, BackgroundWait, BackgroundRefuse)
		if r.Client != "" {
			messages, known := backgroundMessages[r.Client]
			if !known {
				c.add(append(p, "client"), "unknown client %q: want %s", clip(r.Client), strings.Join(slices.Sorted(maps.Keys(backgroundMessages)), ", "))
			}
			r.Client, r.LastMessage = "", append(slices.Clone(r.LastMessage), messages...)
		} else if r.Path == "" && len(r.Headers)+len(r.Metadata)+len(r.LastMessage) == 0 {
			c.add(p, "no condition; want client, path, headers, metadata or last_message")
		}
		if !ValidPattern(r.Path) {
			c.add(append(p, "path"), "bad pattern %q", clip(r.Path))
		}
		for field, patterns := range map[string]map[string]string{"headers": r.Headers, "metadata": r.Metadata} {
			for name, pattern := range patterns {
				if !ValidPattern(pattern) {
					c.add(append(p, field, name), "bad pattern %q", clip(pattern))
				}
			}
		}
		if slices.Contains(r.LastMessage, "") {
			c.add(append(p, "last_message"), "an empty text, with which every message begins")
		}
	}
}

// MatchPattern reports whether a text matches a pattern, in which * stands for any text.
func MatchPattern(pattern, text string) bool {
	ok, err := path.Match(slashEscaper.Replace(pattern), slashEscaper.Replace(text))
	return ok && err == nil
}

// ValidPattern reports whether a text can be a pattern of MatchPattern.
func ValidPattern(pattern string) bool {
	_, err := path.Match(pattern, "")
	return err == nil
}

// slashEscaper lets * of a pattern match a slash too.
var slashEscaper = strings.NewReplacer("/", "\x00")
