package redact

import (
	"net/url"
	"regexp"
	"strings"
)

// placeholder stands where a secret was.
const placeholder = "[secret]"

// Patterns of secrets in text. The first group stays.
var secrets = []*regexp.Regexp{
	// user and password of a URL
	regexp.MustCompile(`(\b[A-Za-z][A-Za-z0-9+.-]*://)(?:[^\s/@"'<>]+|[^\s/@:"'<>[]*:\d*[^\s\d/@"'<>][^\s@"'<>]*)@`),
	// the signature of a link to Azure's storage
	regexp.MustCompile(`([?&]sig=)[^\s"'&<>]+`),
	// name=value, name: value and "name":"value"
	regexp.MustCompile(`(?i)(\b[\w.-]*(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key(?:[_-]?id)?|credentials?|signature|authorization|cookie)\\?["']?\s*[=:]\s*)` +
		`(?:(?:bearer|basic)\s+)?(?:\\?"(?:[^"\\]|\\[^"])*\\?"|'[^']*'|[^\s"'&,;)}\]]+)`),
	regexp.MustCompile(`(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}`),
	// keys of Reveille, Hugging Face, OpenAI and AWS
	regexp.MustCompile(`()\b(?:rv_[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|A[KS]IA[A-Z0-9]{16})`),
}

// minSecret is the least length of a known value that is hidden: a shorter one is part of ordinary words.
const minSecret = 6

// Secrets hides passwords, tokens and keys in a line of a log, and the known values wherever they stand.
func Secrets(line string, known ...string) string {
	line = toValidUTF8(line)
	for _, k := range known {
		if len(k) >= minSecret {
			line = strings.ReplaceAll(line, k, placeholder)
		}
	}
	for _, re := range secrets {
		line = re.ReplaceAllStringFunc(line, func(match string) string {
			kept := re.FindStringSubmatch(match)[1]
			if strings.HasSuffix(kept, "://") {
				return kept + placeholder + "@"
			}
			return kept + placeholder
		})
	}
	return line
}

// Password is the password of a URL, "" if there is none.
func Password(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.User == nil {
		return ""
	}
	password, _ := u.User.Password()
	return password
}
