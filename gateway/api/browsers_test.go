package api

import (
	"strings"
	"testing"
)

func rules(t *testing.T, origins, hosts []string, checkHost bool) *Browsers {
	t.Helper()
	b, err := NewBrowsers(origins, hosts, checkHost)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestHosts(t *testing.T) {
	b := rules(t, nil, []string{"gw.lan", "Box.Example."}, true)
	for host, want := range map[string]bool{
		"127.0.0.1": true, "127.0.0.1:8080": true, "[::1]": true, "[::1]:8080": true, "192.0.2.7:1": true, "[2001:DB8::1]:1": true,
		"localhost": true, "LocalHost:8080": true, "localhost.": true, "localhost.:8080": true, "localhost:": true,
		"gw.lan": true, "GW.LAN:8080": true, "gw.lan.": true, "box.example": true,
		"": false, ".": false, ":8080": false, "evil.example": false, "localhost.evil.example": false, "127.0.0.1.nip.io": false,
		"evil.localhost": false, "x.gw.lan": false, "gw.lan.evil.example": false, "evil@localhost": false, "localhost@evil.example": false,
		"localhost,evil.example": false, "localhost evil.example": false, "localhost/": false, "localhost#": false, "localhost\\": false,
		"localhost:80:80": false, "localhost:8a": false, "localhost:-1": false, "localhost..": false,
		"::1": false, "[::1": false, "[::1]x": false, "[fe80::1%eth0]": false, "2130706433": false, "0x7f.1": false, "127.1": false,
		"xn--lcalhost-54a": false, "ⅼocalhost": false, "*": false, "null": false,
	} {
		if _, e := b.Check(Source{Host: host}); (e == nil) != want || e != nil && e.Kind != ForbiddenHost {
			t.Errorf("Host %q: %v, want allowed %v", host, e, want)
		}
		if _, e := b.Check(Source{Host: "localhost", Target: host}); host != "" && (e == nil) != want {
			t.Errorf("target %q: %v, want allowed %v", host, e, want)
		}
		if _, e := b.Check(Source{Host: host, Target: "localhost"}); (e == nil) != want {
			t.Errorf("Host %q behind a good target: %v, want allowed %v", host, e, want)
		}
		if _, e := rules(t, nil, nil, false).Check(Source{Host: host}); e != nil {
			t.Errorf("Host %q with keys: %v", host, e)
		}
	}
}

func TestOriginsOfPages(t *testing.T) {
	b := rules(t, []string{"https://chat.example.org", "https://port.example:8443", "mine://*"}, nil, true)
	for origin, want := range map[string]bool{
		"http://localhost": true, "https://LOCALHOST:3000": true, "http://localhost.:1": true, "http://127.0.0.1:3000": true, "http://127.9.9.9": true, "http://[::1]:3000": true,
		"app://obsidian.md": true, "APP://x": true, "app://": true, "tauri://localhost": true, "http://tauri.localhost": true, "capacitor://localhost": true,
		"vscode-webview://1ab2": true, "mine://anything": true,
		"https://chat.example.org": true, "https://CHAT.example.org:443": true, "https://port.example:8443": true,
		"http://chat.example.org": false, "https://chat.example.org:444": false, "https://port.example": false, "https://chat.example.org.evil.example": false,
		"null": false, "NULL": false, "file://": false, "https://evil.example": false, "http://localhost.evil.example": false, "http://127.0.0.1.nip.io": false,
		"http://evil.localhost": false, "http://localhost@evil.example": false, "http://evil.example@localhost": false, "http://localhost:3000.evil.example": false,
		"http://localhost http://evil.example": false, "http://localhost,http://evil.example": false,
		"http://192.0.2.7": false, "http://0.0.0.0": false, "http://2130706433": false, "http://[::1].evil.example": false, "localhost": false, "//localhost": false,
		"ws://localhost": false, "chrome-extension://abc": false, "app://a b": false, "xapp://a": false, "https://app://a": false,
	} {
		for _, site := range []string{"", "none", "same-origin", "same-site", "cross-site"} {
			headers, e := b.Check(Source{Host: "localhost:8080", Origin: origin, Site: site})
			if (e == nil) != want || e != nil && e.Kind != ForbiddenOrigin {
				t.Errorf("Origin %q, site %q: %v, want allowed %v", origin, site, e, want)
			}
			if e == nil && (headerMap(headers)["Access-Control-Allow-Origin"] != origin || headerMap(headers)["Vary"] != "Origin" || headerMap(headers)["Access-Control-Allow-Credentials"] != "") {
				t.Errorf("Origin %q: %v", origin, headers)
			}
		}
	}
}

func TestWebPagesWithoutOrigin(t *testing.T) {
	b := rules(t, nil, nil, true)
	for site, want := range map[string]bool{"none": true, "same-origin": true, "same-site": false, "Same-Origin": false, "cross-site": false, "Cross-Site": false, "": true, "x": false, "cross-site, none": false, "none\ncross-site": false} {
		if _, e := b.Check(Source{Host: "localhost", Site: site}); (e == nil) != want {
			t.Errorf("site %q: %v, want allowed %v", site, e, want)
		}
	}
	for _, origins := range []string{"http://localhost\nhttps://evil.example", "http://localhost#\nhttps://evil.example", "\nhttps://evil.example"} {
		if _, e := b.Check(Source{Host: "localhost", Origin: origins}); e == nil {
			t.Errorf("%q: allowed", origins)
		}
	}
	if h, e := b.Check(Source{Host: "localhost"}); e != nil || headerMap(h)["Vary"] != "Origin" || headerMap(h)["Access-Control-Allow-Origin"] != "" {
		t.Errorf("no page: %v %v", h, e)
	}
	for referer, want := range map[string]bool{
		"http://localhost:3000/a?b#c": true, "http://127.0.0.1": true, "http://[::1]:3000/": true, "app://obsidian.md/": true, "http://gw.example:8080/upstream/m/": true, "https://gw.example:8080": true,
		"https://evil.example/": false, "http://gw.example/": false, "http://localhost.evil.example/": false, "http://localhost@evil.example/": false, "http://evil.example/http://localhost/": false,
		"http://evil.example?http://localhost/": false, "http://evil.example#@localhost/": false, "http://evil.example\\@localhost/": false, "//localhost/": false, "localhost": false, "about:client": false, "file:///tmp/x.html": false,
	} {
		s := Source{Host: "gw.example:8080", Referer: referer}
		own := rules(t, nil, []string{"gw.example"}, true)
		if _, e := own.Check(s); (e == nil) != want || e != nil && e.Kind != ForbiddenOrigin {
			t.Errorf("Referer %q: %v, want allowed %v", referer, e, want)
		}
		s.Referer = "http://localhost/#\n" + referer
		if _, e := own.Check(s); e == nil {
			t.Errorf("two Referers, the second %q: allowed", referer)
		}
	}
	any := rules(t, []string{"*"}, nil, false)
	if _, e := any.Check(Source{Host: "gw.example", Referer: "https://evil.example/"}); e != nil {
		t.Errorf("a Referer with *: %v", e)
	}
	if h, e := any.Check(Source{Host: "gw.example", Origin: "https://evil.example"}); e != nil || headerMap(h)["Access-Control-Allow-Origin"] != "*" {
		t.Errorf("*: %v %v", h, e)
	}
}

// A gateway's own pages, as engines have them, are not foreign.
func TestCrossOrigin(t *testing.T) {
	for _, c := range []struct {
		host, target, origin, site string
		foreign                    bool
	}{
		{host: "gw.example"}, {host: "gw.example", site: "none"}, {host: "gw.example", site: "same-origin"},
		{host: "gw.example", origin: "https://gw.example"}, {host: "gw.example:443", origin: "https://GW.example"}, {host: "gw.example:81", origin: "http://gw.example:81"},
		{host: "gw.example", origin: "https://gw.example:444", foreign: true}, {host: "gw.example", origin: "null", foreign: true},
		{host: "gw.example", origin: "app://gw.example", foreign: true}, {host: "gw.example", site: "same-site", foreign: true}, {host: "gw.example", site: "cross-site", foreign: true},
		{host: "evil.example", target: "gw.example", origin: "https://evil.example", foreign: true},
	} {
		s := Source{Host: c.host, Target: c.target, Origin: c.origin, Site: c.site}
		if s.CrossOrigin() != c.foreign {
			t.Errorf("%+v: foreign %v", c, s.CrossOrigin())
		}
		if c.origin != "" && c.site == "" { // the same by a Referer alone
			if by := (Source{Host: c.host, Target: c.target, Referer: c.origin + "/page"}); by.CrossOrigin() != c.foreign {
				t.Errorf("%+v, by its Referer: foreign %v", c, by.CrossOrigin())
			}
		}
		if _, e := rules(t, nil, nil, false).Check(s); c.origin != "" && (e == nil) == (c.foreign && !strings.HasPrefix(c.origin, "app:")) {
			t.Errorf("%+v: %v", c, e)
		}
	}
}

func TestPreflight(t *testing.T) {
	for asked, want := range map[string]string{"x-stainless-os, authorization": "x-stainless-os, authorization", "": ""} {
		h := headerMap(Preflight(asked))
		got := h["Access-Control-Allow-Headers"]
		if want != "" && got != want || got == "" || strings.ContainsAny(got, "\r\n") {
			t.Errorf("asked %q: %q", asked, got)
		}
		if !strings.Contains(h["Access-Control-Allow-Methods"], "DELETE") || h["Access-Control-Max-Age"] == "" {
			t.Errorf("preflight %v", h)
		}
	}
}

func TestRulesOfBrowsersAreChecked(t *testing.T) {
	for _, o := range []string{"null", "chat.example.org", "https://chat.example.org/", "https://*", "http://*", "https://*.example.org", "://x", "https://", "https://a b"} {
		if _, err := NewBrowsers([]string{o}, nil, true); err == nil {
			t.Errorf("origin %q was taken", o)
		}
	}
	for _, h := range []string{"*", "gw.lan:80", "http://gw.lan", "a@b", "", "*.lan"} {
		if _, err := NewBrowsers(nil, []string{h}, true); err == nil {
			t.Errorf("host %q was taken", h)
		}
	}
}
