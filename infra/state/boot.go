package state

import (
	"cmp"
	"context"

	"reveille/infra/policy"
	"reveille/infra/term"
)

// Words of a Boot.
const (
	Booting    = "booting"
	BootFailed = "failed"
)

const maxBootReason = 512 // bytes

// Boot is what a host's machine said of its start, before its runner. It is for people only, and nobody has signed it.
type Boot struct {
	State  string // Booting or BootFailed; "" if the machine has said nothing since its last wake, or the runner is up
	Reason string // why it failed, one line of at most 512 bytes
	AtMS   int64
}

// ReportBoot records that a host's machine is booting, or, with a reason, that its start failed. ErrUnknownHost: the
// pool has no such host. On a host that is awake it does nothing.
func (s *Store) ReportBoot(ctx context.Context, host, failed string) error {
	word := Booting
	if failed != "" {
		word = BootFailed
	}
	return s.evalStatus(ctx, "boot", host, word, term.Line(failed, maxBootReason))
}

// Boot returns the machine's last report.
func (h *HostRecord) Boot() Boot {
	b := Boot{h.Fields["boot_state"], term.Line(h.Fields["boot_error"], maxBootReason), ParseNumber(h.Fields["boot_ms"])}
	if b.State != Booting && b.State != BootFailed || h.State == policy.Ready || h.State == policy.Draining {
		return Boot{}
	}
	if b.State == BootFailed {
		b.Reason = cmp.Or(b.Reason, "no reason was given")
	} else {
		b.Reason = ""
	}
	return b
}
