package api

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// appSchemes are the schemes under which desktop and mobile apps and editors serve their own pages: no site can have
// such an origin. file: is not among them, because any downloaded page has it, and neither are browser extensions.
var appSchemes = []string{"app", "tauri", "capacitor", "ionic", "vscode-webview", "vscode-file"}

// Browsers decides which web pages may use a gateway and under which host names it can be called. A page that the
// operator visits reaches loopback addresses too: its browser says so in Origin and Sec-Fetch-Site, and a page whose
// own name was made to point here (DNS rebinding) is known by Host. The rules are those of
// [net/http.CrossOriginProtection], on every method, because GET /unload acts. Pages of this machine and of apps are
// always allowed. It is safe for concurrent use.
type Browsers struct {
	any     bool            // every origin
	origins map[string]bool // as originOf has them, or "scheme://*"
	hosts   map[string]bool // names allowed besides IP addresses; nil allows every Host
}

// NewBrowsers returns the rules. origins are further ones that are allowed: "https://chat.example.org", "myapp://*" for
// a whole scheme that is not http or https, or "*" for all. hosts are names without a port; they count while checkHost
// is set, which gateways without keys need.
func NewBrowsers(origins, hosts []string, checkHost bool) (*Browsers, error) {
	b := &Browsers{any: slices.Contains(origins, "*"), origins: map[string]bool{}}
	var errs []error
	for _, o := range origins {
		u, err := url.Parse(o)
		switch {
		case o == "*":
		case err != nil || u.Host == "" || u.Path+u.RawQuery != "" || u.User != nil || strings.Contains(o, "*") && (u.Host != "*" || isWeb(o)):
			errs = append(errs, fmt.Errorf("origin %q: want scheme://host[:port], scheme://* for an app, or *", o))
		default:
			b.origins[originOf(o)] = true
		}
	}
	if checkHost {
		b.hosts = map[string]bool{"localhost": true}
	}
	for _, h := range hosts {
		if name := hostname(h); name == "" || strings.ContainsAny(h, ":*") {
			errs = append(errs, fmt.Errorf("host %q: want a host name without a port", h))
		} else if checkHost {
			b.hosts[name] = true
		}
	}
	return b, errors.Join(errs...)
}

// Source is the part of a request's head that says where it comes from. A header that was sent several times has all of
// its values, with line breaks between them: no rule allows such a text.
type Source struct {
	Target  string // authority of a request target in absolute form, "" for others
	Host    string // the Host header
	Origin  string // the Origin header
	Site    string // the Sec-Fetch-Site header
	Referer string // the Referer header
}

// page names the page that made the request, "" if no page did or its browser does not say which.
func (s Source) page() string { return cmp.Or(s.Origin, s.Referer) }

// crossSite reports whether there is only Sec-Fetch-Site to tell of another page than this server's own.
func (s Source) crossSite() bool {
	return s.Origin == "" && s.Site != "" && s.Site != "none" && s.Site != "same-origin"
}

// CrossOrigin reports whether a page of another origin made the request, allowed or not.
func (s Source) CrossOrigin() bool {
	return s.page() != "" && !s.isOwn(originOf(s.page())) || s.crossSite()
}

// isOwn reports whether an origin is this server's own. The scheme is not compared: whoever ends TLS for a gateway
// hides it.
func (s Source) isOwn(origin string) bool {
	scheme, _, _ := strings.Cut(origin, "://")
	return isWeb(origin) && origin == originOf(scheme+"://"+cmp.Or(s.Target, s.Host))
}

// noOriginHeaders are the headers of a response to a request without an origin.
var noOriginHeaders = []Header{{"Vary", "Origin"}}

// Check returns the headers of the response to a request, or its refusal.
func (b *Browsers) Check(s Source) ([]Header, *Error) {
	if b.hosts != nil && (!b.hostAllowed(s.Host) || s.Target != "" && !b.hostAllowed(s.Target)) {
		return nil, New(ForbiddenHost, "Without API keys, this gateway accepts only requests to an IP address, localhost, or a host name of --allowed-hosts.")
	}
	origin := originOf(s.page())
	switch {
	case s.page() != "" && !b.any && !s.isOwn(origin) && !b.originAllowed(origin), s.crossSite():
		e := New(ForbiddenOrigin, "Web pages of this origin are not allowed; allow them with --cors-origins.")
		e.Headers = noOriginHeaders
		return nil, e
	case s.Origin == "":
		return noOriginHeaders, nil
	case b.any:
		return []Header{{"Access-Control-Allow-Origin", "*"}, {"Access-Control-Expose-Headers", exposed}}, nil
	}
	return []Header{{"Access-Control-Allow-Origin", s.Origin}, {"Access-Control-Expose-Headers", exposed}, {"Vary", "Origin"}}, nil
}

// Preflight returns the headers of the 204 response to OPTIONS, in addition to those of Check. requested is the
// request's Access-Control-Request-Headers.
func Preflight(requested string) []Header {
	if requested == "" {
		requested = "Authorization, Content-Type, x-api-key, x-request-id, x-cold-wait, x-wait-timeout"
	}
	return []Header{
		{"Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"},
		{"Access-Control-Allow-Headers", requested},
		{"Access-Control-Max-Age", "7200"},
	}
}

func (b *Browsers) hostAllowed(authority string) bool {
	name := hostname(authority)
	_, err := netip.ParseAddr(name)
	return err == nil || b.hosts[name]
}

func (b *Browsers) originAllowed(origin string) bool {
	scheme, host, _ := strings.Cut(origin, "://")
	if !isWeb(origin) {
		return slices.Contains(appSchemes, scheme) || b.origins[scheme+"://*"] || b.origins[origin]
	}
	name := hostname(host)
	ip, err := netip.ParseAddr(name)
	// tauri.localhost is where Tauri's pages are on Windows and Android, which allow no custom scheme.
	return err == nil && ip.Unmap().IsLoopback() || name == "localhost" || name == "tauri.localhost" || b.origins[origin]
}

func isWeb(origin string) bool {
	return strings.HasPrefix(origin, "http://") || strings.HasPrefix(origin, "https://")
}

// originOf returns the origin of an address, in lower case and without the scheme's default port, "" if it has none or is
// several.
func originOf(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Scheme == "" || u.Opaque != "" || u.User != nil || strings.Contains(address, "\n") {
		return ""
	}
	host := strings.ToLower(u.Host)
	if port := u.Port(); u.Scheme == "http" && port == "80" || u.Scheme == "https" && port == "443" {
		host = strings.TrimSuffix(host, ":"+port)
	}
	return u.Scheme + "://" + host
}

// hostname returns the name or address in host[:port], in lower case and without a final dot, "" for anything else.
func hostname(authority string) string {
	u, err := url.Parse("http://" + authority)
	if err != nil || u.Host != authority {
		return ""
	}
	return strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
}
