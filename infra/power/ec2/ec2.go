// Package ec2 is the power driver for hosts that are one EC2 instance each, stopped while asleep.
package ec2

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"reveille/infra/awsquery"
	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/power/internal/awserr"
)

var _ power.Driver = (*Driver)(nil)

// Config of a Driver. Client is required.
type Config struct {
	// Client returns a client for EC2 in a region; "" means the environment's region. It is called for every operation.
	Client func(ctx context.Context, region string) (*awsquery.Client, error)
	// Poll is the time between two checks of an instance that is starting; default 3 s.
	Poll time.Duration
}

// watchFor is how long Wake watches whether the instance starts.
const watchFor = 45 * time.Second

// Driver starts and stops instances. It has nothing to close.
type Driver struct{ cfg Config }

// New creates a driver.
func New(cfg Config) *Driver {
	cfg.Poll = cmp.Or(max(cfg.Poll, 0), 3*time.Second)
	return &Driver{cfg}
}

// Wake starts the host's instance and watches it until it runs, for at most watchFor: AWS may accept a start and let
// the instance fall back to stopped. power.ErrNoCapacity or power.ErrFailed: it did, with AWS's reason.
// power.ErrStopping: the instance must finish stopping first.
func (d *Driver) Wake(ctx context.Context, host catalog.Host) error {
	api, err := d.cfg.Client(ctx, host.Region)
	if err != nil {
		return fmt.Errorf("%w: %w", power.ErrDenied, err)
	}
	err = api.Call(ctx, "StartInstances", url.Values{"InstanceId.1": {host.Instance}}, nil)
	if err == nil {
		return d.watch(ctx, api, host)
	}
	if awserr.Code(err) != "IncorrectInstanceState" {
		return awserr.Classify(err)
	}
	switch i, err := instanceOf(ctx, api, host); {
	case err != nil:
		return err
	case i.State == running || i.State == pending:
		return nil
	case i.State == terminated || i.State == shuttingDown:
		return fmt.Errorf("%w: instance %s is %s", power.ErrUnknownHost, host.Instance, i.State)
	default: // stopping, or stopped since the first call
		return fmt.Errorf("%w: instance %s is %s", power.ErrStopping, host.Instance, i.State)
	}
}

// watch waits until an instance whose start was accepted runs, or has fallen back to stopped.
func (d *Driver) watch(ctx context.Context, api *awsquery.Client, host catalog.Host) error {
	began, starting := time.Now(), false
	for {
		i, err := instanceOf(ctx, api, host)
		switch {
		case err != nil:
			return err
		case i.State == running:
			return nil
		case i.State == pending:
			starting = true
		case i.State == stopped && (starting || time.Since(began) > 3*d.cfg.Poll): // AWS may show an old state at first
			kind := power.ErrFailed
			if strings.HasPrefix(i.Reason, "User initiated") {
				kind = power.ErrStopping // another call stopped it meanwhile
			} else if awserr.LacksCapacity(i.Reason + " " + i.StateReason) {
				kind = power.ErrNoCapacity
			}
			return fmt.Errorf("%w: instance %s was starting and is stopped again: %s", kind, host.Instance,
				cmp.Or(strings.TrimSpace(i.Reason+" "+i.StateReason), "AWS gives no reason"))
		}
		if time.Since(began) > watchFor {
			return nil
		}
		select {
		case <-time.After(d.cfg.Poll):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Sleep stops the host's instance, or hibernates it if the catalog says so and the instance can. power.ErrStarting:
// the instance must finish starting first.
func (d *Driver) Sleep(ctx context.Context, host catalog.Host) error {
	api, err := d.cfg.Client(ctx, host.Region)
	if err != nil {
		return fmt.Errorf("%w: %w", power.ErrDenied, err)
	}
	stop := func(hibernate bool) error {
		params := url.Values{"InstanceId.1": {host.Instance}}
		if hibernate {
			params.Set("Hibernate", "true")
		}
		return api.Call(ctx, "StopInstances", params, nil)
	}
	err = stop(host.Hibernate)
	if host.Hibernate && awserr.Code(err) == "UnsupportedHibernationConfiguration" {
		err = stop(false)
	}
	if awserr.Code(err) != "IncorrectInstanceState" {
		return awserr.Classify(err)
	}
	switch i, err := instanceOf(ctx, api, host); {
	case err != nil:
		return err
	case i.State == pending || i.State == running:
		return fmt.Errorf("%w: instance %s is %s", power.ErrStarting, host.Instance, i.State)
	default: // stopping, or off
		return nil
	}
}

// State returns the instance's state; a terminated one stays Off.
func (d *Driver) State(ctx context.Context, host catalog.Host) (power.Power, error) {
	api, err := d.cfg.Client(ctx, host.Region)
	if err != nil {
		return power.Unknown, fmt.Errorf("%w: %w", power.ErrDenied, err)
	}
	i, err := instanceOf(ctx, api, host)
	switch {
	case err != nil:
		return power.Unknown, err
	case i.State == pending:
		return power.Starting, nil
	case i.State == running:
		return power.On, nil
	case i.State == stopping || i.State == shuttingDown:
		return power.Stopping, nil
	}
	return power.Off, nil
}

// Machines returns the running and starting instances whose tag Project is project and that have a tag Host with their
// host's name.
func (d *Driver) Machines(ctx context.Context, project string) ([]power.Machine, error) {
	api, err := d.cfg.Client(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", power.ErrDenied, err)
	}
	var machines []power.Machine
	params := url.Values{
		"Filter.1.Name": {"tag:Project"}, "Filter.1.Value.1": {project},
		"Filter.2.Name": {"tag-key"}, "Filter.2.Value.1": {"Host"},
		"Filter.3.Name": {"instance-state-name"}, "Filter.3.Value.1": {pending}, "Filter.3.Value.2": {running},
	}
	for {
		var out described
		if err := api.Call(ctx, "DescribeInstances", params, &out); err != nil {
			return nil, awserr.Classify(err)
		}
		for _, i := range out.Instances {
			for _, tag := range i.Tags {
				if tag.Key == "Host" {
					machines = append(machines, power.Machine{ID: i.ID, Host: tag.Value, Since: i.LaunchTime})
				}
			}
		}
		if out.NextToken == "" {
			return machines, nil
		}
		params.Set("NextToken", out.NextToken)
	}
}

// Oldest returns which of some instances was launched first.
func Oldest(ctx context.Context, api *awsquery.Client, ids []string) (string, error) {
	params := url.Values{}
	for i, id := range ids {
		params.Set(fmt.Sprint("InstanceId.", i+1), id)
	}
	var out described
	if err := api.Call(ctx, "DescribeInstances", params, &out); err != nil {
		return "", awserr.Classify(err)
	}
	first, launched := ids[0], time.Now()
	for _, i := range out.Instances {
		if i.LaunchTime.Before(launched) && slices.Contains(ids, i.ID) {
			first, launched = i.ID, i.LaunchTime
		}
	}
	return first, nil
}

// States of instances.
const (
	pending      = "pending"
	running      = "running"
	stopping     = "stopping"
	stopped      = "stopped"
	shuttingDown = "shutting-down"
	terminated   = "terminated"
)

// described is what DescribeInstances returns.
type described struct {
	Instances []instance `xml:"reservationSet>item>instancesSet>item"`
	NextToken string     `xml:"nextToken"`
}

type instance struct {
	ID          string    `xml:"instanceId"`
	State       string    `xml:"instanceState>name"`
	Reason      string    `xml:"reason"` // StateTransitionReason of the API
	StateReason string    `xml:"stateReason>message"`
	LaunchTime  time.Time `xml:"launchTime"`
	Tags        []struct {
		Key   string `xml:"key"`
		Value string `xml:"value"`
	} `xml:"tagSet>item"`
}

func instanceOf(ctx context.Context, api *awsquery.Client, host catalog.Host) (instance, error) {
	var out described
	if err := api.Call(ctx, "DescribeInstances", url.Values{"InstanceId.1": {host.Instance}}, &out); err != nil {
		return instance{}, awserr.Classify(err)
	}
	if len(out.Instances) == 0 || out.Instances[0].State == "" {
		return instance{}, fmt.Errorf("%w: instance %s does not exist", power.ErrUnknownHost, host.Instance)
	}
	return out.Instances[0], nil
}
