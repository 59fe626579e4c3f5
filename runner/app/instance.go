package app

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	awsconfig "github.com/aws/aws-sdk-go-v2/config"

	"reveille/infra/awsquery"
	"reveille/runner/host"
	"reveille/runner/instance"
)

// InstanceSettings are the flags of a runner on a cloud machine.
type InstanceSettings struct {
	Instance      string `help:"Cloud of this machine: aws or none. The host drains when the cloud's metadata service announces that the machine is reclaimed." enum:"none,aws" default:"none"`
	ScalingGroup  string `help:"Auto Scaling group of this machine, for the lifecycle hooks."`
	LaunchHook    string `help:"Lifecycle hook at which the group waits until this host has registered."`
	TerminateHook string `help:"Lifecycle hook at which the group waits until this host has drained."`
	Slot          string `help:"--host is a group of hosts (max in the models file), and this machine one of them: instance (it claims a host by its instance id; needs --instance aws), or pod (the host by the number at the end of the machine's name: group-0 is the first)." enum:"none,instance,pod" default:"none"`
}

func (s Settings) checkInstance() error {
	if s.Slot == slotInstance && s.Instance != "aws" {
		return errors.New("--slot=instance needs --instance=aws")
	}
	if s.Slot != "" && s.Slot != slotNone && s.Host == "" {
		return errors.New("--slot needs --host, the name of the group")
	}
	if hooks := s.LaunchHook != "" || s.TerminateHook != ""; hooks && (s.Instance != "aws" || s.ScalingGroup == "") {
		return errors.New("--launch-hook and --terminate-hook need --scaling-group and --instance=aws")
	}
	return nil
}

const (
	shutdownMargin = 10 * time.Second // open requests are cut this long before a spot instance stops
	hookLimit      = 5 * time.Minute  // for all tries to complete a lifecycle action
)

// cloudMachine is the instance that runs the runner.
type cloudMachine struct {
	InstanceSettings
	meta       *instance.Metadata
	group      *instance.Group
	log        *slog.Logger
	registered chan struct{} // closed by the first registration
	once       sync.Once
}

// newCloudMachine returns the instance of the settings, nil for none. It takes the address of the metadata service from
// the same variable as AWS's programs. The caller must close it.
func newCloudMachine(s InstanceSettings, log *slog.Logger) *cloudMachine {
	if s.Instance != "aws" {
		return nil
	}
	m := &cloudMachine{InstanceSettings: s, meta: instance.NewMetadata(os.Getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT")), log: log, registered: make(chan struct{})}
	m.group = &instance.Group{Name: s.ScalingGroup, Metadata: m.meta, Client: m.client, Log: log}
	return m
}

// client returns a client for the API of the machine's region, with the AWS settings and credentials of the
// environment.
func (m *cloudMachine) client(ctx context.Context) (*awsquery.Client, error) {
	cfg, err := awsconfig.LoadDefaultConfig(ctx)
	if err == nil && cfg.Region == "" {
		cfg.Region, _, err = m.meta.Get(ctx, "placement/region")
	}
	return awsquery.AutoScaling(cfg), err
}

// onRegister records that the host is registered. It can be called any number of times.
func (m *cloudMachine) onRegister() {
	if m != nil {
		m.once.Do(func() { close(m.registered) })
	}
}

// run runs the host until ctx ends. If the machine is reclaimed before that, the host drains, run completes the
// group's termination hook, and then waits until ctx ends, because a runner that exits would be started again.
func (m *cloudMachine) run(ctx context.Context, h *host.Host) error {
	if m == nil {
		return h.Run(ctx)
	}
	running, stop := context.WithCancel(ctx)
	noticed := make(chan struct{}) // closed before the host is interrupted
	var watching sync.WaitGroup
	watching.Go(func() { m.completeLaunch(running) })
	watching.Go(func() {
		n, err := instance.Watch(running, m.meta, 0, m.log)
		if err != nil {
			return
		}
		close(noticed)
		m.log.Warn("this machine is being reclaimed", "reason", string(n.Reason), "at", n.At)
		if n.Reason == instance.Interruption {
			h.Interrupt(n.At.Add(-shutdownMargin))
		} else {
			stop()
		}
	})
	err := h.Run(running)
	stop()
	watching.Wait()
	select {
	case <-noticed:
	default:
		return err
	}
	if err == nil {
		m.completeTermination(ctx)
		<-ctx.Done()
	}
	return err
}

// completeLaunch completes the launch hook once the host has registered.
func (m *cloudMachine) completeLaunch(ctx context.Context) {
	if m.LaunchHook == "" {
		return
	}
	select {
	case <-m.registered:
		m.complete(ctx, m.LaunchHook)
	case <-ctx.Done():
	}
}

// completeTermination completes the termination hook after the host has drained.
func (m *cloudMachine) completeTermination(ctx context.Context) {
	if m.TerminateHook != "" {
		m.complete(ctx, m.TerminateHook)
	}
}

func (m *cloudMachine) complete(ctx context.Context, hook string) {
	ctx, cancel := context.WithTimeout(ctx, hookLimit)
	defer cancel()
	if err := m.group.Complete(ctx, hook); err != nil {
		m.log.Error("could not complete the lifecycle hook; the group continues when the hook times out", "hook", hook, "error", err)
	}
}

// close closes the connections to the metadata service.
func (m *cloudMachine) close() {
	if m != nil {
		m.meta.Close()
	}
}
