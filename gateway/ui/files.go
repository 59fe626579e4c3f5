package ui

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"path"
)

//go:embed static
var static embed.FS

// File is one of the page's files.
type File struct {
	Type string // media type
	ETag string // changes with the content
	Body []byte // shared: do not change it
}

// Page is the name of the file that is the page itself.
const Page = "index.html"

// Policy is the Content-Security-Policy of all files: nothing from elsewhere, no script or style in the page.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"frame-ancestors 'none'; base-uri 'none'; form-action 'self'"

var mediaTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

var files = readFiles()

func readFiles() map[string]File {
	entries, err := static.ReadDir("static")
	if err != nil {
		panic("ui: " + err.Error()) // the folder is embedded
	}
	out := map[string]File{}
	for _, e := range entries {
		body, err := fs.ReadFile(static, "static/"+e.Name())
		if err != nil {
			panic("ui: " + err.Error())
		}
		sum := sha256.Sum256(body)
		out[e.Name()] = File{mediaTypes[path.Ext(e.Name())], `"` + hex.EncodeToString(sum[:12]) + `"`, body}
	}
	return out
}

// Open returns a file by its name.
func Open(name string) (f File, ok bool) {
	f, ok = files[name]
	return f, ok
}
