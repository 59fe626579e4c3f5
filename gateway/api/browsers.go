package api

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// appSchemes are the schemes under which desktop and mobile apps and editors
// serve their own pages: no site can have such an origin. file: is not among
// them, because any downloaded page has it where a web view sends it at all,
// and neither are browser extensions.
var appSchemes = map[string]bool{
	"app": true, "tauri": true, "capacitor": true, "ionic": true, "vscode-webview": true, "vscode-file": true,
}

// tauriHost is the host of Tauri's pages on Windows and Android, where their
// origin cannot have a scheme of its own.
const tauriHost = "tauri.localhost"

// Browsers decides which web pages may use a gateway and under which host names
// it may be called. A page that the operator visits reaches loopback addresses
// too: its browser marks what it sends with Origin and Sec-Fetch-Site, and a
// page that let its own name point here (DNS rebinding) is known by Host.
//
// Pages of localhost and of apps are always allowed. The zero value allows
// nothing more and every Host. It is safe for concurrent use.
type Browsers struct {
	any     bool            // every origin
	origins map[string]bool // normalised
	schemes map[string]bool // of "scheme://*"
	hosts   map[string]bool // names allowed besides IP addresses and localhost; nil allows every Host
}

// NewBrowsers returns the rules. origins are further ones that are allowed:
// "https://chat.example.org", "myapp://*" for a whole scheme that is not http or
// https, or "*" for all. hosts are names without a port; they count while
// checkHost is set, which gateways without keys need.
func NewBrowsers(origins, hosts []string, checkHost bool) (*Browsers, error) {
	b := &Browsers{origins: map[string]bool{}, schemes: map[string]bool{}}
	var errs []error
	for _, o := range origins {
		scheme, rest, _ := strings.Cut(strings.ToLower(o), "://")
		switch {
		case o == "*":
			b.any = true
		case rest == "*" && isScheme(scheme) && scheme != "http" && scheme != "https":
			b.schemes[scheme] = true
		case !isScheme(scheme) || !isOriginHost(rest):
			errs = append(errs, fmt.Errorf("origin %q: want scheme://host[:port], scheme://* for an app, or *", o))
		default:
			b.origins[normalOrigin(scheme, rest)] = true
		}
	}
	if checkHost {
		b.hosts = map[string]bool{}
	}
	for _, h := range hosts {
		name, port, ok := splitAuthority(strings.ToLower(h))
		if !ok || port != "" {
			errs = append(errs, fmt.Errorf("host %q: want a host name without a port", h))
		} else if checkHost {
			b.hosts[strings.TrimSuffix(name, ".")] = true
		}
	}
	return b, errors.Join(errs...)
}

// Source is the part of a request's head that says where it comes from.
type Source struct {
	Target   string   // authority of a request target in absolute form, "" for others
	Host     string   // the Host header
	Origins  []string // every Origin header
	Sites    []string // every Sec-Fetch-Site header
	Referers []string // every Referer header that is not empty
	Tool     bool     // see [IsTool]
}

// IsTool reports whether a request's User-Agent and Accept-Language are those
// of a program that is no browser, such as curl or an HTTP library. No page can
// have a browser send them without a preflight.
func IsTool(agent, language []byte) bool {
	return len(agent) > 0 && len(language) == 0 && !bytes.Contains(agent, []byte("Mozilla/")) && !bytes.Contains(agent, []byte("Opera/"))
}

// Foreign reports whether the request was made by a page of another origin,
// allowed or not.
func (s Source) Foreign() bool {
	if len(s.Origins) > 0 && s.Origins[0] != "" {
		return len(s.Origins) > 1 || !s.isOwn(s.Origins[0])
	}
	return slices.ContainsFunc(s.Sites, elsewhere) ||
		slices.ContainsFunc(s.Referers, func(r string) bool { return !s.isOwn(originOf(r)) })
}

// Unmarked reports whether a page of any origin may have caused the request: it
// does not come from a tool, and nothing in it names the page. Browsers mark
// neither pictures nor links for a server at a plain http name, and those from
// before 2023 for no server.
func (s Source) Unmarked() bool {
	return !s.Tool && len(s.Origins) == 0 && len(s.Sites) == 0 && len(s.Referers) == 0
}

// elsewhere reports whether a Sec-Fetch-Site names a page that is not this
// server's own.
func elsewhere(site string) bool { return site != "none" && site != "same-origin" }

// originOf is the origin of a Referer.
func originOf(referer string) string {
	scheme, rest, _ := strings.Cut(referer, "://")
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		rest = rest[:end]
	}
	return scheme + "://" + rest
}

// isOwn reports whether an origin is this server's own. The scheme is not
// compared: whoever ends TLS for a gateway hides it.
func (s Source) isOwn(origin string) bool {
	scheme, rest, ok := strings.Cut(strings.ToLower(origin), "://")
	if !ok || scheme != "http" && scheme != "https" {
		return false
	}
	at := s.Host
	if s.Target != "" {
		at = s.Target
	}
	page, pagePort, ok := splitAuthority(rest)
	own, ownPort, ok2 := splitAuthority(strings.ToLower(at))
	return ok && ok2 && page == own && normalPort(scheme, pagePort) == normalPort(scheme, ownPort)
}

// noPage are the headers of an answer to a request without an origin.
var noPage = []Header{{"Vary", "Origin"}}

// Check returns the headers of an answer to the request, or its refusal. A
// request without an origin may not come from a page of another site or port:
// neither Sec-Fetch-Site nor Referer may say so.
func (b *Browsers) Check(s Source) (headers []Header, e *Error) {
	if b.hosts != nil && (!b.hostAllowed(s.Host) || s.Target != "" && !b.hostAllowed(s.Target)) {
		return nil, New(ForbiddenHost, "Without API keys this gateway answers only to an IP address, localhost, or a host name of --allowed-hosts.")
	}
	origin := ""
	if len(s.Origins) > 0 {
		origin = s.Origins[0]
	}
	switch {
	case origin == "" && len(s.Origins) < 2:
		if slices.ContainsFunc(s.Sites, elsewhere) || slices.ContainsFunc(s.Referers, func(r string) bool { return !b.mayCall(s, originOf(r)) }) {
			return nil, forbiddenOrigin()
		}
		return noPage, nil
	case len(s.Origins) > 1 || !b.mayCall(s, origin):
		return nil, forbiddenOrigin()
	case b.any:
		return []Header{{"Access-Control-Allow-Origin", "*"}, {"Access-Control-Expose-Headers", exposed}}, nil
	}
	return []Header{{"Access-Control-Allow-Origin", origin}, {"Access-Control-Expose-Headers", exposed}, {"Vary", "Origin"}}, nil
}

// mayCall reports whether pages of an origin may use this server.
func (b *Browsers) mayCall(s Source, origin string) bool {
	return b.any || b.originAllowed(origin) || s.isOwn(origin)
}

// UnmarkedPage is the refusal of a request that is [Source.Unmarked], by a
// route that acts on GET.
func UnmarkedPage() *Error {
	e := forbiddenOrigin()
	e.Message = "A web page may have sent this: use POST, a client that is no browser, or a key in the Authorization or x-api-key header."
	return e
}

func forbiddenOrigin() *Error {
	e := New(ForbiddenOrigin, "Web pages of this origin may not use this gateway; --cors-origins lists those that may.")
	e.Headers = noPage
	return e
}

// Preflight returns the headers of the 204 that answers OPTIONS, in addition to
// those of Check. asked is the request's Access-Control-Request-Headers.
func Preflight(asked string) []Header {
	return []Header{
		{"Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"},
		{"Access-Control-Allow-Headers", askedHeaders(asked)},
		{"Access-Control-Max-Age", "7200"},
	}
}

// hostAllowed judges a Host header, or the authority of a target.
func (b *Browsers) hostAllowed(authority string) bool {
	name, _, ok := splitAuthority(strings.ToLower(authority))
	if !ok {
		return false
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	name = strings.TrimSuffix(name, ".")
	return name == "localhost" || b.hosts[name]
}

func (b *Browsers) originAllowed(origin string) bool {
	scheme, rest, ok := strings.Cut(strings.ToLower(origin), "://")
	if !ok || !isOriginHost(rest) && rest != "" {
		return false
	}
	if appSchemes[scheme] || b.schemes[scheme] || b.origins[normalOrigin(scheme, rest)] {
		return true
	}
	name, _, ok := splitAuthority(rest)
	if !ok || scheme != "http" && scheme != "https" {
		return false
	}
	ip, err := netip.ParseAddr(name)
	return err == nil && ip.Unmap().IsLoopback() || name == "localhost" || name == "localhost." || name == tauriHost
}

// normalOrigin is an origin in lower case without its scheme's default port.
func normalOrigin(scheme, rest string) string {
	if name, port, ok := splitAuthority(rest); ok {
		return scheme + "://" + name + ":" + normalPort(scheme, port)
	}
	return scheme + "://" + rest
}

func normalPort(scheme, port string) string {
	if port == "80" && scheme == "http" || port == "443" && scheme == "https" {
		return ""
	}
	return port
}

// splitAuthority divides host[:port] in lower case. The host is a name, an IPv4
// address, or an IPv6 address, which must stand in brackets and is returned
// without them. User information and anything that is no such host is not ok.
func splitAuthority(s string) (host, port string, ok bool) {
	rest, bracketed := strings.CutPrefix(s, "[")
	if bracketed {
		if host, rest, ok = strings.Cut(rest, "]"); !ok {
			return "", "", false
		}
		if ip, err := netip.ParseAddr(host); err != nil || !ip.Is6() || ip.Zone() != "" {
			return "", "", false
		}
	} else {
		end := strings.IndexByte(s, ':')
		if end < 0 {
			end = len(s)
		}
		host, rest = s[:end], s[end:]
		if host == "" || strings.Trim(host, "abcdefghijklmnopqrstuvwxyz0123456789.-_") != "" {
			return "", "", false
		}
	}
	if rest == "" {
		return host, "", true
	}
	port = rest[1:]
	return host, port, rest[0] == ':' && len(port) <= 5 && strings.Trim(port, "0123456789") == ""
}

// isOriginHost reports what may stand behind the scheme of an origin; apps are
// free in their hosts.
func isOriginHost(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !('a' <= c && c <= 'z') && !('0' <= c && c <= '9') && strings.IndexByte(".-_:[]", c) < 0 {
			return false
		}
	}
	return s != "" && len(s) <= 255
}

func isScheme(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789+.-") == ""
}

// askedHeaders echoes a list of header names. What is no such list is answered
// with the names clients of these dialects use.
func askedHeaders(asked string) string {
	const usual = "Authorization, Content-Type, x-api-key, x-request-id, x-cold-wait, x-wait-timeout"
	if asked == "" || len(asked) > 4096 {
		return usual
	}
	for i := range len(asked) {
		c := asked[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && !('0' <= c && c <= '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~, ", rune(c)) {
			return usual
		}
	}
	return asked
}
