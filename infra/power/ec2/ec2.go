// Package ec2 is the power driver for hosts that are one EC2 instance each, stopped while asleep.
package ec2

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/power/internal/awserr"
)

var _ power.Driver = (*Driver)(nil)

// API lists the AWS calls of the driver; *ec2.Client implements it.
type API interface {
	StartInstances(context.Context, *ec2.StartInstancesInput, ...func(*ec2.Options)) (*ec2.StartInstancesOutput, error)
	StopInstances(context.Context, *ec2.StopInstancesInput, ...func(*ec2.Options)) (*ec2.StopInstancesOutput, error)
	DescribeInstances(context.Context, *ec2.DescribeInstancesInput, ...func(*ec2.Options)) (*ec2.DescribeInstancesOutput, error)
}

// Config of a Driver. Client is required.
type Config struct {
	// Client returns the API of a region; "" means the environment's region. It is called for every operation.
	Client func(ctx context.Context, region string) (API, error)
}

// Driver starts and stops instances. It has nothing to close.
type Driver struct{ cfg Config }

// New creates a driver.
func New(cfg Config) *Driver { return &Driver{cfg} }

// Wake starts the host's instance. power.ErrStopping: the instance must finish stopping first.
func (d *Driver) Wake(ctx context.Context, host catalog.Host) error {
	api, err := d.cfg.Client(ctx, host.Region)
	if err != nil {
		return fmt.Errorf("%w: %w", power.ErrDenied, err)
	}
	_, err = api.StartInstances(ctx, &ec2.StartInstancesInput{InstanceIds: []string{host.Instance}})
	if awserr.Code(err) != "IncorrectInstanceState" {
		return awserr.Classify("StartInstances", err)
	}
	switch state, err := d.look(ctx, api, host); {
	case err != nil:
		return err
	case state == types.InstanceStateNameRunning || state == types.InstanceStateNamePending:
		return nil
	case state == types.InstanceStateNameTerminated || state == types.InstanceStateNameShuttingDown:
		return fmt.Errorf("%w: instance %s is %s", power.ErrUnknownHost, host.Instance, state)
	default: // stopping, or stopped since the first call
		return fmt.Errorf("%w: instance %s is %s", power.ErrStopping, host.Instance, state)
	}
}

// Sleep stops the host's instance, or hibernates it if the catalogue says so and the instance can. power.ErrStarting:
// the instance must finish starting first.
func (d *Driver) Sleep(ctx context.Context, host catalog.Host) error {
	api, err := d.cfg.Client(ctx, host.Region)
	if err != nil {
		return fmt.Errorf("%w: %w", power.ErrDenied, err)
	}
	stop := func(hibernate bool) error {
		in := &ec2.StopInstancesInput{InstanceIds: []string{host.Instance}}
		if hibernate {
			in.Hibernate = &hibernate
		}
		_, err := api.StopInstances(ctx, in)
		return err
	}
	err = stop(host.Hibernate)
	if host.Hibernate && awserr.Code(err) == "UnsupportedHibernationConfiguration" {
		err = stop(false)
	}
	if awserr.Code(err) != "IncorrectInstanceState" {
		return awserr.Classify("StopInstances", err)
	}
	switch state, err := d.look(ctx, api, host); {
	case err != nil:
		return err
	case state == types.InstanceStateNamePending || state == types.InstanceStateNameRunning:
		return fmt.Errorf("%w: instance %s is %s", power.ErrStarting, host.Instance, state)
	default: // stopping, or off
		return nil
	}
}

// State returns the instance's state; a terminated one is Off for good.
func (d *Driver) State(ctx context.Context, host catalog.Host) (power.Power, error) {
	api, err := d.cfg.Client(ctx, host.Region)
	if err != nil {
		return power.Unknown, fmt.Errorf("%w: %w", power.ErrDenied, err)
	}
	state, err := d.look(ctx, api, host)
	switch {
	case err != nil:
		return power.Unknown, err
	case state == types.InstanceStateNamePending:
		return power.Starting, nil
	case state == types.InstanceStateNameRunning:
		return power.On, nil
	case state == types.InstanceStateNameStopping || state == types.InstanceStateNameShuttingDown:
		return power.Stopping, nil
	}
	return power.Off, nil
}

// Machines are the instances that run, or start, with a project's tag Project and a tag Host, which names their host.
func (d *Driver) Machines(ctx context.Context, project string) ([]power.Machine, error) {
	api, err := d.cfg.Client(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", power.ErrDenied, err)
	}
	var machines []power.Machine
	in := &ec2.DescribeInstancesInput{Filters: []types.Filter{
		{Name: aws.String("tag:Project"), Values: []string{project}},
		{Name: aws.String("tag-key"), Values: []string{"Host"}},
		{Name: aws.String("instance-state-name"), Values: []string{"pending", "running"}},
	}}
	for {
		out, err := api.DescribeInstances(ctx, in)
		if err != nil {
			return nil, awserr.Classify("DescribeInstances", err)
		}
		for _, r := range out.Reservations {
			for _, i := range r.Instances {
				for _, tag := range i.Tags {
					if aws.ToString(tag.Key) == "Host" {
						machines = append(machines, power.Machine{Host: aws.ToString(tag.Value), Since: aws.ToTime(i.LaunchTime)})
					}
				}
			}
		}
		if in.NextToken = out.NextToken; aws.ToString(in.NextToken) == "" {
			return machines, nil
		}
	}
}

func (d *Driver) look(ctx context.Context, api API, host catalog.Host) (types.InstanceStateName, error) {
	out, err := api.DescribeInstances(ctx, &ec2.DescribeInstancesInput{InstanceIds: []string{host.Instance}})
	if err != nil {
		return "", awserr.Classify("DescribeInstances", err)
	}
	for _, r := range out.Reservations {
		for _, i := range r.Instances {
			if i.State != nil {
				return i.State.Name, nil
			}
		}
	}
	return "", fmt.Errorf("%w: instance %s does not exist", power.ErrUnknownHost, host.Instance)
}
