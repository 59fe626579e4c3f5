package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/runner/engine"
	"reveille/runner/engineslots"
	"reveille/runner/host"
)

const (
	slotLimit = 30 * time.Second // of a call about slots; a slot that computes is erased at the end of its batch
	maxSlots  = 256
)

// separate has an engine keep no prompts but those in its slots, and lets the runner erase these.
func separate(spec *engine.Spec) error {
	spec.Slots = true
	spec.Env["LLAMA_ARG_CACHE_RAM"] = "0"
	argv, err := engine.Argv(*spec)
	if err != nil {
		return err
	}
	for i, a := range argv {
		name, value, joined := strings.Cut(strings.ReplaceAll(a, "_", "-"), "=")
		if name != "-cram" && name != "--cache-ram" {
			continue
		}
		if !joined && i+1 < len(argv) {
			value = argv[i+1]
		}
		if value != "0" {
			return &host.Error{Code: rpc.CodeModelLoadError, Message: "conversations: key needs " + name + " 0, or no " + name, Final: true}
		}
	}
	return nil
}

// slotTable returns the table of an engine that serves, whose n slots it erases once to see that it can.
func slotTable(ctx context.Context, r *running, n int) (*engineslots.Table, error) {
	wrong := func(cause error) error {
		return &host.Error{Code: rpc.CodeModelLoadError, Message: "the engine cannot keep conversations apart by key", Final: true, Cause: cause}
	}
	ask := func(ctx context.Context, method, path string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, slotLimit)
		defer cancel()
		req := relay.Request{Method: method, Path: []byte(path), FirstByte: slotLimit, Silence: slotLimit}
		status, answer, err := r.calls.Fetch(ctx, &req, r.APIKey(), nil, 4<<20)
		if err == nil && status != 200 {
			err = fmt.Errorf("%s %s: status %d", method, path, status)
		}
		return answer, err
	}
	text, err := ask(ctx, "GET", "/slots")
	if err != nil {
		return nil, wrong(err)
	}
	var list []struct {
		ID int `json:"id"`
	}
	if err := json.Unmarshal(text, &list); err != nil || len(list) != n || n > maxSlots {
		return nil, wrong(fmt.Errorf("%d slots in place of %d, %v", len(list), n, err))
	}
	erase := func(ctx context.Context, slot int) error {
		_, err := ask(ctx, "POST", fmt.Sprintf("/slots/%d?action=erase", slot))
		return err
	}
	for i, s := range list {
		if s.ID != i {
			return nil, wrong(fmt.Errorf("slot %d has the number %d", i, s.ID))
		}
		if err := erase(ctx, i); err != nil {
			return nil, wrong(err)
		}
	}
	return engineslots.New(n, erase), nil
}

// Slots returns the table that keeps conversations of keys apart, or nil if all share them.
func (r *running) Slots() *engineslots.Table { return r.slots }
