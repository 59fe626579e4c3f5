package state

import (
	"context"
	"errors"
	"time"
)

var (
	// ErrNoSlot: every slot of the group has a machine.
	ErrNoSlot = errors.New("every slot of the group has a machine")
	// ErrRecent: Redis had no state of the pool less than LostAfter ago, so that runners are still to register again.
	ErrRecent = errors.New("the pool's state is too new to know which slots have a machine; retry")
)

// ClaimSlot returns which of a group's hosts a machine is. A machine keeps its slot until it is turned off, and its
// runner registers with it (HostInfo.Machine). slots are the group's hosts in order. Errors: ErrNoSlot, ErrRecent.
func (s *Store) ClaimSlot(ctx context.Context, machine string, slots []string) (host string, err error) {
	args := []any{machine}
	for _, h := range slots {
		args = append(args, h)
	}
	words, err := s.evalList(ctx, "slot_claim", args...)
	if err != nil {
		return "", err
	}
	return words[0], nil
}

// ReleaseSlot frees a slot whose machine is gone, as its cloud says. ErrGone: the machine has no claim on it.
func (s *Store) ReleaseSlot(ctx context.Context, host, machine string) error {
	return s.evalStatus(ctx, "slot_release", host, machine)
}

// LeaseGroup gives the caller the right to change the number of a group's machines, for as long as given; 0 gives it
// up. ErrNotOwner: another has it.
func (s *Store) LeaseGroup(ctx context.Context, group, owner string, lease time.Duration) error {
	return s.evalStatus(ctx, "group_lease", group, owner, lease.Milliseconds())
}
