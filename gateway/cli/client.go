package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Remote says which gateway a command talks to.
type Remote struct {
	URL     string        `help:"The gateway." default:"http://127.0.0.1:8080"`
	APIKey  string        `help:"Key with the scope manage." placeholder:"KEY"`
	Timeout time.Duration `help:"Longest to wait for an answer." default:"10m"`
	JSON    bool          `help:"Print the gateway's answer as JSON."`
}

// call makes one request and decodes the answer into v. An error answer becomes an error with its message.
func (r Remote) call(ctx context.Context, method, path string, body, v any) error {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	var in io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		in = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(r.URL, "/")+path, in)
	if err != nil {
		return err
	}
	if r.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+r.APIKey)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("no gateway answers at %s: %w", r.URL, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 400 {
		var e struct {
			Error struct {
				Message string `json:"message"`
			} `json:"error"`
		}
		if json.Unmarshal(data, &e) != nil || e.Error.Message == "" {
			return fmt.Errorf("%s %s: status %d", method, path, resp.StatusCode)
		}
		return errors.New(e.Error.Message)
	}
	return json.Unmarshal(data, v)
}

// print writes v as indented JSON.
func print(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
