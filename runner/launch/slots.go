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
	slotTimeout = 30 * time.Second // for a call about slots; a slot that computes is erased at the end of its batch
	maxSlots    = 256
)

// isolateSlots configures an engine to keep prompts only in its slots, which the runner can erase.
func isolateSlots(spec *engine.Spec) error {
	spec.SaveSlots = true
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
			return &host.Error{Code: rpc.CodeModelLoadError, Message: "a model with 'conversations: key' cannot set " + name + " to anything but 0", Final: true}
		}
	}
	return nil
}

// slotTable returns the table of a serving engine's n slots. If it isolates keys, it erases them once to verify that it
// can.
func slotTable(ctx context.Context, r *runningEngine, n int, perKey bool) (*engineslots.Table, error) {
	fail := func(cause error) error {
		return &host.Error{Code: rpc.CodeModelLoadError, Message: "the runner cannot choose the engine's slots", Final: true, Cause: cause}
	}
	roundTrip := func(ctx context.Context, method, path string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, slotTimeout)
		defer cancel()
		req := relay.Request{Method: method, Path: []byte(path), FirstByte: slotTimeout, Silence: slotTimeout}
		status, response, err := r.ownClient.Fetch(ctx, &req, r.APIKey(), nil, 4<<20)
		if err == nil && status != 200 {
			err = fmt.Errorf("%s %s: status %d", method, path, status)
		}
		return response, err
	}
	text, err := roundTrip(ctx, "GET", "/slots")
	if err != nil {
		return nil, fail(err)
	}
	var list []struct {
		ID int `json:"id"`
	}
	switch err := json.Unmarshal(text, &list); {
	case err != nil:
		return nil, fail(err)
	case len(list) != n:
		return nil, fail(fmt.Errorf("%d slots instead of %d", len(list), n))
	case n > maxSlots:
		return nil, fail(fmt.Errorf("%d slots, more than %d", n, maxSlots))
	}
	erase := func(ctx context.Context, slot int) error {
		r.conversations.Evict(ctx, slot)
		_, err := roundTrip(ctx, "POST", fmt.Sprintf("/slots/%d?action=erase", slot))
		return err
	}
	for i, s := range list {
		if s.ID != i {
			return nil, fail(fmt.Errorf("slot %d has the number %d", i, s.ID))
		}
		if !perKey {
			continue
		}
		if err := erase(ctx, i); err != nil {
			return nil, fail(err)
		}
	}
	if !perKey {
		erase = nil
	}
	return engineslots.New(n, erase), nil
}
