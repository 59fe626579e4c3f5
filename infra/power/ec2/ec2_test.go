package ec2_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"reveille/infra/awsquery"
	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/power/ec2"
	"reveille/infra/power/waketest"
)

const id = "i-0123456789abcdef0"

var host = catalog.Host{Name: "gpu-1", Driver: catalog.DriverEC2, Instance: id}

// cloud implements, for one instance, the part of EC2's query protocol that the driver uses.
type cloud struct {
	mu      sync.Mutex
	state   string
	starts  int
	refuse  map[string]string // answer an action with this error code once
	seen    []url.Values
	refused int
}

func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	c.mu.Lock()
	defer c.mu.Unlock()
	action := r.Form.Get("Action")
	c.seen = append(c.seen, r.Form)
	if code := c.refuse[action]; code != "" {
		delete(c.refuse, action)
		c.fail(w, code)
		return
	}
	if r.Form.Get("InstanceId.1") != id {
		c.fail(w, "InvalidInstanceID.NotFound")
		return
	}
	switch action {
	case "StartInstances":
		switch c.state {
		case "stopped":
			c.state = "pending"
			c.starts++
		case "pending", "running":
		default:
			c.moveOn()
			c.fail(w, "IncorrectInstanceState")
			return
		}
	case "StopInstances":
		switch c.state {
		case "running", "stopping":
			c.state = "stopping"
		case "pending":
			c.state = "stopping"
		case "terminated", "shutting-down":
			c.fail(w, "IncorrectInstanceState")
			return
		}
	case "DescribeInstances":
		fmt.Fprintf(w, `<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><reservationSet><item><instancesSet><item><instanceId>%s</instanceId><instanceState><name>%s</name></instanceState></item></instancesSet></item></reservationSet></DescribeInstancesResponse>`, id, c.state)
		c.moveOn()
		return
	}
	fmt.Fprintf(w, `<%[1]sResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><instancesSet/></%[1]sResponse>`, action)
}

// moveOn advances the instance's time.
func (c *cloud) moveOn() {
	switch c.state {
	case "pending":
		c.state = "running"
	case "stopping":
		c.state = "stopped"
	}
}

func (c *cloud) fail(w http.ResponseWriter, code string) {
	status := http.StatusBadRequest
	if code == "InsufficientInstanceCapacity" || code == "InternalError" {
		status = http.StatusInternalServerError // as EC2 does
	}
	c.refused++
	w.WriteHeader(status)
	_, _ = io.WriteString(w, `<?xml version="1.0" encoding="UTF-8"?><Response><Errors><Error><Code>`+code+`</Code><Message>recorded</Message></Error></Errors><RequestID>1</RequestID></Response>`)
}

func driver(t *testing.T, c *cloud) *ec2.Driver {
	t.Helper()
	srv := httptest.NewServer(c)
	t.Cleanup(srv.Close)
	client := awsquery.EC2(aws.Config{
		Region: "us-east-1", BaseEndpoint: &srv.URL, Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""), HTTPClient: srv.Client(),
	})
	return ec2.New(ec2.Config{Client: func(context.Context, string) (*awsquery.Client, error) { return client, nil }})
}

func TestContract(t *testing.T) {
	waketest.Run(t, func(t *testing.T) waketest.Fixture {
		c := &cloud{state: "stopped"}
		return waketest.Fixture{
			Driver: driver(t, c), Host: host, Strange: &catalog.Host{Name: "x", Instance: "i-00000000000000000"},
			Starts: func() int {
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.starts
			},
		}
	})
}

func TestErrors(t *testing.T) {
	for code, want := range map[string]error{
		"InsufficientInstanceCapacity": power.ErrNoCapacity, "VcpuLimitExceeded": power.ErrNoCapacity, "InstanceLimitExceeded": power.ErrNoCapacity,
		"RequestLimitExceeded": power.ErrThrottled, "InternalError": power.ErrThrottled, "UnauthorizedOperation": power.ErrDenied,
		"InvalidInstanceID.Malformed": power.ErrUnknownHost, "SomethingNew": power.ErrFailed,
	} {
		t.Run(code, func(t *testing.T) {
			c := &cloud{state: "stopped", refuse: map[string]string{"StartInstances": code, "StopInstances": code, "DescribeInstances": code}}
			d := driver(t, c)
			if err := d.Wake(t.Context(), host); !errors.Is(err, want) {
				t.Error("wake:", err)
			}
			if err := d.Sleep(t.Context(), host); !errors.Is(err, want) {
				t.Error("sleep:", err)
			}
			if _, err := d.State(t.Context(), host); !errors.Is(err, want) {
				t.Error("state:", err)
			}
		})
	}
}

func TestStates(t *testing.T) {
	for _, tc := range []struct {
		state       string
		wake, sleep error
		power       power.Power
	}{
		{"stopped", nil, nil, power.Off},
		{"pending", nil, nil, power.Starting},
		{"running", nil, nil, power.On},
		{"stopping", power.ErrStopping, nil, power.Stopping},
		{"shutting-down", power.ErrUnknownHost, nil, power.Stopping},
		{"terminated", power.ErrUnknownHost, nil, power.Off},
	} {
		t.Run(tc.state, func(t *testing.T) {
			check := func(what string, err, want error) {
				t.Helper()
				if !errors.Is(err, want) || (err == nil) != (want == nil) {
					t.Errorf("%s: %v, want %v", what, err, want)
				}
			}
			check("wake", driver(t, &cloud{state: tc.state}).Wake(t.Context(), host), tc.wake)
			check("sleep", driver(t, &cloud{state: tc.state}).Sleep(t.Context(), host), tc.sleep)
			if p, err := driver(t, &cloud{state: tc.state}).State(t.Context(), host); p != tc.power || err != nil {
				t.Error("state:", p, err)
			}
		})
	}
	c := &cloud{state: "pending", refuse: map[string]string{"StopInstances": "IncorrectInstanceState"}}
	if err := driver(t, c).Sleep(t.Context(), host); !errors.Is(err, power.ErrStarting) {
		t.Error("sleep of a starting instance:", err)
	}
}

func TestHibernation(t *testing.T) {
	for name, refuse := range map[string]map[string]string{"able": nil, "unable": {"StopInstances": "UnsupportedHibernationConfiguration"}} {
		t.Run(name, func(t *testing.T) {
			c := &cloud{state: "running", refuse: refuse}
			sleeper := host
			sleeper.Hibernate = true
			if err := driver(t, c).Sleep(t.Context(), sleeper); err != nil || c.state != "stopping" {
				t.Fatal(err, c.state)
			}
			if first := c.seen[0].Get("Hibernate"); first != "true" {
				t.Error("hibernate:", first)
			}
			if len(c.seen) != 1+c.refused {
				t.Error("calls:", len(c.seen))
			}
		})
	}
}
