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

// InstanceSettings are the flags of a runner on a machine of a cloud.
type InstanceSettings struct {
	Instance      string `help:"Cloud of this machine, whose metadata service says when it is taken away: the host then drains. aws, or none." enum:"none,aws" default:"none"`
	ScalingGroup  string `help:"Auto Scaling group of this machine, for the two hooks."`
	LaunchHook    string `help:"Lifecycle hook at which the group waits until this host has registered."`
	TerminateHook string `help:"Lifecycle hook at which the group waits until this host has drained."`
}

func (s InstanceSettings) parse() error {
	if hooks := s.LaunchHook != "" || s.TerminateHook != ""; hooks && (s.Instance != "aws" || s.ScalingGroup == "") {
		return errors.New("--launch-hook, --terminate-hook: name the group with --scaling-group, and --instance=aws")
	}
	return nil
}

const (
	farewell  = 10 * time.Second // before a spot instance stops, open requests are cut
	hookLimit = 5 * time.Minute  // of all tries to complete a lifecycle action
)

// cloudMachine is the instance that the runner lives on.
type cloudMachine struct {
	InstanceSettings
	meta       *instance.Metadata
	group      *instance.Group
	log        *slog.Logger
	registered chan struct{} // closed by the first registration
	once       sync.Once
}

// newCloudMachine makes the instance of the settings, nil where there is none. The address of the metadata service is where
// AWS's own programs look for it. Close it.
func newCloudMachine(s InstanceSettings, log *slog.Logger) *cloudMachine {
	if s.Instance != "aws" {
		return nil
	}
	m := &cloudMachine{InstanceSettings: s, meta: instance.NewMetadata(os.Getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT")), log: log, registered: make(chan struct{})}
	m.group = &instance.Group{Name: s.ScalingGroup, Metadata: m.meta, Client: m.client, Log: log}
	return m
}

// client is the API of the machine's region. AWS's settings and credentials are those of the environment.
func (m *cloudMachine) client(ctx context.Context) (*awsquery.Client, error) {
	cfg, err := awsconfig.LoadDefaultConfig(ctx)
	if err == nil && cfg.Region == "" {
		cfg.Region, _, err = m.meta.Get(ctx, "placement/region")
	}
	return awsquery.AutoScaling(cfg), err
}

// onRegister is called when the host is registered. It may be called any number of times.
func (m *cloudMachine) onRegister() {
	if m != nil {
		m.once.Do(func() { close(m.registered) })
	}
}

// run runs the host until ctx ends. Where the machine is taken away before that, the host drains, run tells the machine's
// group that it may go, and then waits until ctx ends: a runner that ended would be started again.
func (m *cloudMachine) run(ctx context.Context, h *host.Host) error {
	if m == nil {
		return h.Run(ctx)
	}
	live, end := context.WithCancel(ctx)
	noticed := make(chan struct{}) // closed before the host is interrupted
	var watching sync.WaitGroup
	watching.Go(func() { m.completeLaunch(live) })
	watching.Go(func() {
		n, err := instance.Watch(live, m.meta, 0, m.log)
		if err != nil {
			return
		}
		close(noticed)
		m.log.Warn("this machine is taken away", "reason", string(n.Reason), "at", n.At)
		if n.Reason == instance.Interruption {
			h.Interrupt(n.At.Add(-farewell))
		} else {
			end()
		}
	})
	err := h.Run(live)
	end()
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

// completeLaunch tells the group that the host has registered.
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

// completeTermination tells the group that the host has drained.
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

// close ends what the machine keeps open.
func (m *cloudMachine) close() {
	if m != nil {
		m.meta.Close()
	}
}
