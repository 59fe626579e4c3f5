//go:build unix && !linux

package sandbox

import (
	"cmp"
	"os/exec"
	"syscall"
)

// A Sandbox does not confine engines on this system.
type Sandbox struct{ report Report }

// New reports every measure as missing.
func New(cfg Config) (*Sandbox, error) {
	cfg.Mode = cmp.Or(cfg.Mode, Off)
	return &Sandbox{report: newReport(cfg.Mode, measures)}, nil
}

// Report returns the report, in which every measure is missing.
func (s *Sandbox) Report() Report { return s.report }

// Start starts cmd in a separate process group. In strict mode it fails. release is never nil.
func (s *Sandbox) Start(cmd *exec.Cmd, _ Permissions, _ <-chan struct{}) (release func(), err error) {
	if err := s.report.Check(); err != nil {
		return func() {}, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return func() {}, cmd.Start()
}
