package hf

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"reveille/infra/catalog"
	"reveille/runner/weights"
)

const maxPage = 16 << 20 // bytes of one page of a listing

// node is an entry of a repository's listing.
type node struct {
	Type string `json:"type"`
	Path string `json:"path"`
	OID  string `json:"oid"`
	Size int64  `json:"size"`
	LFS  *struct {
		OID  string `json:"oid"`
		Size int64  `json:"size"`
	} `json:"lfs"`
}

// List asks the hub for the files of a folder, or of the whole repository.
func (s *Source) List(ctx context.Context, at catalog.Checkpoint) ([]weights.File, error) {
	next := s.base.JoinPath("api", "models", at.Repo, "tree", url.PathEscape(revision(at)), escaped(at.Path))
	next.RawQuery = "recursive=true"
	var out []weights.File
	for pages := 0; next != nil && len(out) <= weights.MaxFiles && pages <= weights.MaxFiles; pages++ {
		nodes, follow, err := s.listPage(ctx, next)
		if err != nil {
			return nil, err
		}
		for _, n := range nodes {
			name, below := strings.CutPrefix(n.Path, folder(at.Path))
			if n.Type != "file" || !below {
				continue
			}
			t := fileInfo{size: n.Size, etag: n.OID}
			if n.LFS != nil {
				t.size, t.etag = n.LFS.Size, n.LFS.OID
			}
			file := at
			file.Path = n.Path
			f := &remote{source: s, page: s.page(file), told: t}
			out = append(out, weights.File{Name: name, Size: t.size, Digest: digest(t.etag), Open: f.open})
		}
		next = follow
	}
	slices.SortFunc(out, func(a, b weights.File) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// folder is the prefix of the paths below a folder.
func folder(path string) string {
	if path == "" {
		return ""
	}
	return path + "/"
}

// listPage reads one page of a listing and where the next one is, nil for none.
func (s *Source) listPage(ctx context.Context, at *url.URL) ([]node, *url.URL, error) {
	resp, err := s.follow(ctx, http.MethodGet, at, "")
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, nil, refused(resp)
	}
	var nodes []node
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxPage)).Decode(&nodes); err != nil {
		return nil, nil, fmt.Errorf("GET %s: %w", bare(at), err)
	}
	link := resp.Header.Get("Link") // <URL>; rel="next"
	target, rel, _ := strings.Cut(link, ">")
	if !strings.HasPrefix(target, "<") || !strings.Contains(rel, `rel="next"`) {
		return nodes, nil, nil
	}
	next, err := at.Parse(target[1:])
	if err != nil || !s.ours(next) {
		return nil, nil, fmt.Errorf("GET %s: its next page is elsewhere", bare(at))
	}
	return nodes, next, nil
}
