package hub

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// pageSize is how many files one page of a listing has.
const pageSize = 3

// serveHub answers /ORG/REPO/resolve/REVISION/PATH and /api/models/ORG/REPO/tree/REVISION/PATH.
func (h *Hub) serveHub(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked++
	if h.private && r.Header.Get("Authorization") != "Bearer "+Token {
		fail(w, http.StatusUnauthorized, "GatedRepo")
		return
	}
	raw := strings.TrimPrefix(r.URL.EscapedPath(), "/")
	listing := strings.HasPrefix(raw, "api/models/")
	parts := strings.SplitN(strings.TrimPrefix(raw, "api/models/"), "/", 5)
	for i, part := range parts {
		parts[i], _ = url.PathUnescape(part)
	}
	if len(parts) < 4 {
		fail(w, http.StatusNotFound, "")
		return
	}
	repo, path := parts[0]+"/"+parts[1], strings.Join(parts[4:], "")
	files := h.files[repo]
	switch {
	case parts[0] == "old": // an organisation that was renamed
		http.Redirect(w, r, strings.Replace(r.URL.RequestURI(), "/old/", "/new/", 1), http.StatusTemporaryRedirect)
	case files == nil:
		fail(w, http.StatusNotFound, "RepoNotFound")
	case !slices.Contains([]string{"main", "v1", "refs/pr/1", Commit}, parts[3]):
		fail(w, http.StatusNotFound, "RevisionNotFound")
	case listing && parts[2] == "tree":
		h.list(w, r, files, path)
	case parts[2] == "resolve" && files[path] == nil:
		fail(w, http.StatusNotFound, "EntryNotFound")
	case parts[2] == "resolve":
		h.resolve(w, r, repo, path, files[path])
	default:
		fail(w, http.StatusNotFound, "")
	}
}

func fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("X-Error-Code", code)
	w.WriteHeader(status)
}

// resolve reports what a file is, and where: a small one is served here, a large one by the store.
func (h *Hub) resolve(w http.ResponseWriter, r *http.Request, repo, path string, f *file) {
	w.Header().Set("X-Repo-Commit", Commit)
	if f.small {
		w.Header().Set("Etag", `"`+f.sum+`"`)
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(f.content)))
		return
	}
	w.Header().Set("X-Linked-Etag", `"`+f.sum+`"`)
	w.Header().Set("X-Linked-Size", strconv.Itoa(len(f.content)))
	w.Header().Set("Location", fmt.Sprintf("%s/%s/%s?X-Amz-Signature=%s&epoch=%d", h.store.URL, repo, (&url.URL{Path: path}).EscapedPath(), Signature, h.epoch))
	w.WriteHeader(http.StatusFound)
}

// list answers one page of a listing.
func (h *Hub) list(w http.ResponseWriter, r *http.Request, files map[string]*file, folder string) {
	type lfs struct {
		OID  string `json:"oid"`
		Size int    `json:"size"`
	}
	type node struct {
		Type string `json:"type"`
		Path string `json:"path"`
		OID  string `json:"oid"`
		Size int    `json:"size"`
		LFS  *lfs   `json:"lfs,omitempty"`
	}
	all := []node{}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if folder != "" && !strings.HasPrefix(path, folder+"/") {
			continue
		}
		f := files[path]
		n := node{Type: "file", Path: path, OID: f.sum, Size: len(f.content)}
		if !f.small {
			n.OID, n.LFS = strings.Repeat("0", 40), &lfs{f.sum, len(f.content)}
		}
		all = append(all, n)
	}
	if len(all) == 0 {
		fail(w, http.StatusNotFound, "EntryNotFound")
		return
	}
	at, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	end := min(at+pageSize, len(all))
	if end < len(all) {
		next := *r.URL
		next.RawQuery = fmt.Sprintf("recursive=true&cursor=%d", end)
		w.Header().Set("Link", fmt.Sprintf(`<%s%s>; rel="next"`, h.URL, next.String()))
	}
	_ = json.NewEncoder(w).Encode(all[at:end])
}

// serveStore answers ranged reads of signed URLs.
func (h *Hub) serveStore(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "" {
		h.t.Error("hub: the store was sent credentials of the hub")
	}
	org, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	name, path, _ := strings.Cut(rest, "/")
	repo := org + "/" + name
	h.mu.Lock()
	f, no, gate, epoch := h.files[repo][path], h.refusals[path], h.gate, strconv.Itoa(h.epoch)
	h.mu.Unlock()
	var from, last int64
	_, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &last)
	switch q := r.URL.Query(); {
	case no.status != 0:
		fail(w, no.status, no.code)
		return
	case q.Get("X-Amz-Signature") != Signature || q.Get("epoch") != epoch:
		fail(w, http.StatusForbidden, "")
		return
	case f == nil:
		fail(w, http.StatusNotFound, "")
		return
	case err != nil || from < 0 || last < from || last >= int64(len(f.content)):
		fail(w, http.StatusRequestedRangeNotSatisfiable, "")
		return
	}
	if last == 0 && len(f.content) > 1 { // only asked what there is
		w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-0/%d", len(f.content)))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(f.content[:1])
		return
	}
	h.mu.Lock()
	h.reads = append(h.reads, Read{repo + "/" + path, from, last + 1})
	broken := h.breaks > 0
	if broken {
		h.breaks--
	}
	h.mu.Unlock()
	body := f.content[from : last+1]
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, last, len(f.content)))
	w.WriteHeader(http.StatusPartialContent)
	if gate != nil {
		n := min(gateBytes, len(body))
		_, _ = w.Write(body[:n])
		body = body[n:]
		_ = http.NewResponseController(w).Flush()
		select {
		case <-gate:
		case <-r.Context().Done():
			return
		}
	}
	if broken {
		body = body[:len(body)/2]
	}
	_, _ = w.Write(body)
	if broken {
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}
