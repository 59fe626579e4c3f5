package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strconv"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/state"
	"reveille/runner/instance"
)

// Values of --slot.
const (
	slotNone     = "none"
	slotInstance = "instance"
	slotPod      = "pod"
)

const (
	slotPoll = 2 * time.Second
	// slotWait is how long a machine tries to get a slot of its group. By then a slot whose machine is gone is free.
	slotWait = 3 * time.Minute
)

// errNoGroup: the catalog has no group of that name, perhaps not yet.
var errNoGroup = errors.New("the models file has no group of this name with max above 1")

// podNumber is the ordinal at the end of a pod's name.
var podNumber = regexp.MustCompile(`-(0|[1-9][0-9]{0,3})$`)

// slotOf returns which host this machine is: name itself, or the machine's slot of the group of that name, with the id
// by which the machine has claimed it. kind is that of --slot. It waits for Redis and for the group's entry in the
// catalog.
func slotOf(ctx context.Context, kind, name string, store *state.Store, log *slog.Logger) (host, machine string, err error) {
	switch kind {
	case slotPod:
		pod, err := os.Hostname()
		if err != nil {
			return "", "", err
		}
		host, err = slotOfPod(name, pod)
		return host, "", err
	case slotInstance:
	default:
		return name, "", nil
	}
	meta := instance.NewMetadata(os.Getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT"))
	defer meta.Close()
	reported := ""
	for began := time.Now(); ; {
		if machine == "" {
			var ok bool
			if machine, ok, err = meta.Get(ctx, "instance-id"); err == nil && !ok {
				err = errors.New("instance metadata: no instance-id")
			}
		}
		if machine != "" {
			host, err = claim(ctx, store, name, machine)
		}
		final := errors.Is(err, state.ErrNoSlot) || errors.Is(err, errNoGroup)
		switch {
		case err == nil:
			log.Info("this machine has a slot of its group", "host", host, "machine", machine)
			return host, machine, nil
		case final && time.Since(began) > slotWait:
			return "", "", fmt.Errorf("group %s, machine %s: %w", name, machine, err)
		case reported != err.Error():
			reported = err.Error()
			log.Warn("waiting for a slot of the group", "group", name, "machine", machine, "error", err)
		}
		select {
		case <-ctx.Done():
			return "", "", fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(slotPoll):
		}
	}
}

// claim claims a slot of the group in the published catalog.
func claim(ctx context.Context, store *state.Store, group, machine string) (string, error) {
	_, raw, err := store.Catalog(ctx)
	if err != nil {
		return "", err
	}
	if len(raw) == 0 {
		return "", errors.New("no gateway has published the models file yet")
	}
	c, err := catalog.Unmarshal(raw)
	if err != nil {
		return "", err
	}
	var slots []string
	for _, h := range c.Slots(group) {
		slots = append(slots, h.Name)
	}
	if len(slots) == 0 {
		return "", errNoGroup
	}
	return store.ClaimSlot(ctx, machine, slots)
}

// slotOfPod returns the host of a pod of a StatefulSet, by its number.
func slotOfPod(group, pod string) (string, error) {
	number := podNumber.FindStringSubmatch(pod)
	if number == nil {
		return "", fmt.Errorf("--slot=pod: this machine's name, %q, does not end in a number as that of a pod of a StatefulSet", pod)
	}
	n, err := strconv.Atoi(number[1])
	if err != nil {
		return "", err
	}
	return catalog.SlotName(group, n+1), nil
}
