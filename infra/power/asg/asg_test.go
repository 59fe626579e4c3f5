package asg_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"reveille/infra/awsquery"
	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/power/asg"
	"reveille/infra/power/waketest"
)

var host = catalog.Host{Name: "gpu", Driver: catalog.DriverASG, Group: "reveille-gpu", Max: 4}

// machine is a member of the group.
type machine struct{ id, state string }

// cloud implements, for one group, the part of the service's query protocol that the driver uses. Each description advances time.
type cloud struct {
	mu       sync.Mutex
	desired  int
	max      int
	members  []machine
	launched int
	empty    string // why AWS has no machine, "" if it has one
	failed   []time.Time
	refuse   string // the code of every call's error
	cooldown bool   // a call honoured the cooldown
}

func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	action := r.FormValue("Action")
	if c.refuse != "" {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, "<ErrorResponse><Error><Code>%s</Code><Message>recorded</Message></Error></ErrorResponse>", c.refuse)
		return
	}
	fmt.Fprintf(w, `<%[1]sResponse xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/"><%[1]sResult>`, action)
	defer fmt.Fprintf(w, `</%[1]sResult></%[1]sResponse>`, action)
	switch action {
	case "DescribeAutoScalingGroups":
		if r.FormValue("AutoScalingGroupNames.member.1") != host.Group {
			return
		}
		fmt.Fprintf(w, "<AutoScalingGroups><member><DesiredCapacity>%d</DesiredCapacity><MaxSize>%d</MaxSize><Instances>", c.desired, c.max)
		for _, m := range c.members {
			fmt.Fprintf(w, "<member><InstanceId>%s</InstanceId><LifecycleState>%s</LifecycleState></member>", m.id, m.state)
		}
		fmt.Fprint(w, "</Instances></member></AutoScalingGroups>")
		c.passLocked()
	case "DescribeScalingActivities":
		fmt.Fprint(w, "<Activities>")
		for _, at := range c.failed {
			fmt.Fprintf(w, "<member><StatusCode>Failed</StatusCode><StatusMessage>%s</StatusMessage><StartTime>%s</StartTime></member>", c.empty, at.Format(time.RFC3339))
		}
		fmt.Fprint(w, "</Activities>")
	case "SetDesiredCapacity":
		c.cooldown = c.cooldown || r.FormValue("HonorCooldown") != "false"
		c.desired, _ = strconv.Atoi(r.FormValue("DesiredCapacity"))
		for i := range c.members {
			if i >= c.desired {
				c.members[i].state = "Terminating"
			}
		}
	case "TerminateInstanceInAutoScalingGroup":
		for i, m := range c.members {
			if m.id == r.FormValue("InstanceId") {
				c.members[i].state = "Terminating"
				if r.FormValue("ShouldDecrementDesiredCapacity") == "true" {
					c.desired--
				}
			}
		}
	}
}

// passLocked advances every machine by one step and launches missing ones.
func (c *cloud) passLocked() {
	var left []machine
	for _, m := range c.members {
		switch m.state {
		case "Pending":
			m.state = "InService"
		case "Terminating":
			continue
		}
		left = append(left, m)
	}
	for len(left) < c.desired {
		if c.empty != "" {
			c.failed = append(c.failed, time.Now())
			break
		}
		c.launched++
		left = append(left, machine{fmt.Sprintf("i-%017d", c.launched), "Pending"})
	}
	c.members = left
}

func driver(t *testing.T, c *cloud) *asg.Driver {
	t.Helper()
	srv := httptest.NewServer(c)
	t.Cleanup(srv.Close)
	client := awsquery.AutoScaling(aws.Config{
		Region: "us-east-1", BaseEndpoint: &srv.URL, Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""), HTTPClient: srv.Client(),
	})
	return asg.New(asg.Config{Poll: time.Millisecond, Client: func(context.Context, string) (*awsquery.Client, error) { return client, nil }})
}

func TestContract(t *testing.T) {
	waketest.Run(t, func(t *testing.T) waketest.Fixture {
		c := &cloud{max: 4}
		t.Cleanup(func() {
			if c.cooldown {
				t.Error("a resize waited for the group's cooldown")
			}
		})
		return waketest.Fixture{
			Driver: driver(t, c), Host: host, Strange: &catalog.Host{Name: "x", Group: "no such group"},
			Starts: func() int {
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.launched
			},
		}
	})
}

func TestNoMachineToGive(t *testing.T) {
	for _, message := range []string{
		"We currently do not have sufficient g5.xlarge capacity in the Availability Zone you requested (us-east-1a).",
		"Could not launch On-Demand Instances. InsufficientInstanceCapacity - There is no capacity",
		"You have requested more vCPU capacity than your current vCPU limit of 0 allows",
	} {
		c := &cloud{max: 1, empty: message}
		err := driver(t, c).Wake(t.Context(), host)
		if !errors.Is(err, power.ErrNoCapacity) || !strings.Contains(err.Error(), message) {
			t.Error("wake:", err)
		}
		if c.desired != 0 {
			t.Error("the group still tries to get", c.desired)
		}
	}
	if err := driver(t, &cloud{}).Wake(t.Context(), host); !errors.Is(err, power.ErrNoCapacity) {
		t.Error("wake of a group that allows no machine:", err)
	}
}

// TestTheIdleMemberGoes puts one of three machines to sleep. That machine ends and is not replaced.
func TestTheIdleMemberGoes(t *testing.T) {
	c := &cloud{max: 4, desired: 3}
	c.passLocked()
	d := driver(t, c)
	idle := host
	idle.Name, idle.Instance = "gpu.i-00000000000000002", "i-00000000000000002"
	if err := d.Sleep(t.Context(), idle); err != nil {
		t.Fatal(err)
	}
	if err := d.Sleep(t.Context(), idle); err != nil {
		t.Fatal("again:", err)
	}
	if p, err := d.State(t.Context(), idle); p != power.Off || err != nil {
		t.Error("state:", p, err)
	}
	if c.desired != 2 || len(c.members) != 2 || c.launched != 3 {
		t.Error("desired", c.desired, "members", len(c.members), "launched", c.launched)
	}
	if err := d.Sleep(t.Context(), host); !errors.Is(err, power.ErrFailed) {
		t.Error("a sleep that does not name the idle one:", err)
	}
}

func TestErrors(t *testing.T) {
	for code, want := range map[string]error{
		"Throttling": power.ErrThrottled, "ResourceContention": power.ErrThrottled, "ScalingActivityInProgress": power.ErrThrottled,
		"AccessDenied": power.ErrDenied, "ValidationError": power.ErrFailed,
	} {
		c := &cloud{max: 1, refuse: code}
		d := driver(t, c)
		if err := d.Wake(t.Context(), host); !errors.Is(err, want) {
			t.Error(code, "wake:", err)
		}
		if err := d.Sleep(t.Context(), host); !errors.Is(err, want) {
			t.Error(code, "sleep:", err)
		}
		if _, err := d.State(t.Context(), host); !errors.Is(err, want) {
			t.Error(code, "state:", err)
		}
	}
}
