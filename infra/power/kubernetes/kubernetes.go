// Package kubernetes is the power driver for hosts that are one pod each: Wake scales a StatefulSet or Deployment to one
// replica, Sleep to none. The cluster's own autoscaler adds and removes the node.
//
// It uses the subresource scale, so a Role needs no more than get and patch of it:
// https://kubernetes.io/docs/reference/kubernetes-api/autoscaling-resources/scale-v1/
// A scale cannot be watched: to hear when a pod is gone, the driver watches the workload itself, if the Role lets it.
package kubernetes

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/power"
)

var (
	_ power.Driver = (*Driver)(nil)
	_ power.Waiter = (*Driver)(nil)
)

// Bounds on one call to the API server.
const (
	callTimeout = 15 * time.Second
	maxReply    = 1 << 20
)

// Bounds on a watch.
const (
	watchTime  = time.Minute // of one connection, which the API server ends then
	maxWatch   = 16 << 20    // bytes of one connection
	firstPause = time.Second // between two connections
	longPause  = 30 * time.Second
)

// Cluster is an API server, with a client that authenticates to it and verifies its certificate.
type Cluster struct {
	URL       string // without a path
	Namespace string // of hosts that name none
	Client    *http.Client
}

// Config of a Driver. Cluster is required.
type Config struct {
	// Cluster finds the API server. It is called for every operation.
	Cluster func() (Cluster, error)
}

// Driver scales workloads. It has nothing to close.
type Driver struct{ cfg Config }

// New creates a driver.
func New(cfg Config) *Driver { return &Driver{cfg} }

// Wake scales the host's workload to one replica. A pod that is still ending does not matter: the cluster starts the
// next one.
func (d *Driver) Wake(ctx context.Context, host catalog.Host) error {
	_, err := d.scale(ctx, host, "patch", `{"spec":{"replicas":1}}`)
	return err
}

// Sleep scales the host's workload to none.
func (d *Driver) Sleep(ctx context.Context, host catalog.Host) error {
	_, err := d.scale(ctx, host, "patch", `{"spec":{"replicas":0}}`)
	return err
}

// State compares the replicas that are wanted with those that exist. A pod that waits for a node exists, so its host is
// On; only the host's registration shows that its runner works.
func (d *Driver) State(ctx context.Context, host catalog.Host) (power.Power, error) {
	s, err := d.scale(ctx, host, "get", "")
	if err != nil {
		return power.Unknown, err
	}
	return s.power(), nil
}

// WaitOff watches the host's workload until it wants no pod and has none. A connection that ends is made again after 1, 2, 4
// … 30 s, from 1 s after one that told something, and the state is asked for before.
func (d *Driver) WaitOff(ctx context.Context, host catalog.Host) error {
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		is, err := d.State(ctx, host)
		heard := false
		if err == nil && is != power.Off {
			is, heard, err = d.watch(ctx, host)
		}
		switch {
		case err == nil && is == power.Off:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !errors.Is(err, power.ErrThrottled):
			return err
		case heard:
			pause = firstPause
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// watch hears of the workload until its host is off, or the connection ends. Without a resource version the API server first
// tells what is. https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-watch
func (d *Driver) watch(ctx context.Context, host catalog.Host) (is power.Power, heard bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, watchTime+callTimeout) // of a server that does not end it
	defer cancel()
	resp, what, err := d.call(ctx, host, "watch", "")
	if err != nil {
		return power.Unknown, false, err
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(io.LimitReader(resp.Body, maxWatch))
	lines.Buffer(nil, maxReply)
	for lines.Scan() {
		var event struct {
			Type   string
			Object struct {
				scale
				Message string
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return power.Unknown, heard, fmt.Errorf("%w: %s: the answer is no event", power.ErrFailed, what)
		}
		switch event.Type {
		case "ADDED", "MODIFIED":
			heard = true
			if is = event.Object.power(); is == power.Off {
				return is, heard, nil
			}
		case "DELETED":
			return power.Unknown, heard, fmt.Errorf("%w: %s: it was deleted", power.ErrUnknownHost, what)
		case "ERROR":
			return power.Unknown, heard, fmt.Errorf("%w: %s: %.500s", power.ErrThrottled, what, event.Object.Message)
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return power.Unknown, heard, fmt.Errorf("%w: %s: an event has more than %d bytes", power.ErrFailed, what, maxReply)
	}
	return is, heard, nil // it ended, or was lost
}

// scale is the part of autoscaling/v1's Scale that counts, and that workloads have too. The API leaves out zeros.
type scale struct {
	Kind   string `json:"kind"`
	Spec   struct{ Replicas int }
	Status struct{ Replicas int }
}

func (s scale) power() power.Power {
	switch {
	case s.Spec.Replicas > 0 && s.Status.Replicas == 0:
		return power.Starting
	case s.Spec.Replicas > 0:
		return power.On
	case s.Status.Replicas > 0:
		return power.Stopping
	}
	return power.Off
}

func (d *Driver) scale(ctx context.Context, host catalog.Host, verb, patch string) (scale, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, what, err := d.call(ctx, host, verb, patch)
	if err != nil {
		return scale{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return scale{}, fmt.Errorf("%w: %w", power.ErrThrottled, err)
	}
	var s scale
	if err := json.Unmarshal(body, &s); err != nil || s.Kind != "Scale" {
		return scale{}, fmt.Errorf("%w: %s: the answer is no Scale", power.ErrFailed, what)
	}
	return s, nil
}

// call does what a verb of a Role names: get and patch of the workload's scale, watch of the workload. It returns an answer with a
// status of success, and words for what was asked.
func (d *Driver) call(ctx context.Context, host catalog.Host, verb, patch string) (*http.Response, string, error) {
	c, err := d.cfg.Cluster()
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", power.ErrDenied, err)
	}
	kind, name, ok := strings.Cut(host.Workload, "/")
	if !ok {
		return nil, "", fmt.Errorf("%w: workload %q is not KIND/NAME", power.ErrUnknownHost, host.Workload)
	}
	namespace := cmp.Or(host.Namespace, c.Namespace)
	what := verb + " " + host.Workload + " in namespace " + namespace
	target, err := url.JoinPath(c.URL, "apis/apps/v1/namespaces", url.PathEscape(namespace), url.PathEscape(kind)+"s")
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", power.ErrDenied, err)
	}
	method := http.MethodGet
	switch verb {
	case "watch": // of one workload: with this selector a Role may name it
		target += "?" + url.Values{
			"watch": {"1"}, "timeoutSeconds": {strconv.Itoa(int(watchTime.Seconds()))}, "fieldSelector": {"metadata.name=" + name},
		}.Encode()
	case "patch":
		method = http.MethodPatch
		fallthrough
	default:
		target += "/" + url.PathEscape(name) + "/scale"
	}
	req, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(patch))
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", power.ErrDenied, err)
	}
	req.Header.Set("Accept", "application/json")
	if patch != "" {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := c.Client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, "", err
		}
		return nil, "", fmt.Errorf("%w: %w", power.ErrThrottled, err) // an API server that is away is asked again
	}
	if resp.StatusCode/100 != 2 {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, maxReply)) // a part of it is no Status
		_ = resp.Body.Close()
		return nil, "", fmt.Errorf("%w: %s: %w", classify(resp.StatusCode), what, reason(resp, body))
	}
	return resp, what, nil
}

// classify maps the API server's statuses to errors of package power.
func classify(status int) error {
	switch {
	case status == http.StatusNotFound:
		return power.ErrUnknownHost
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return power.ErrDenied
	case status == http.StatusTooManyRequests || status == http.StatusConflict || status >= 500:
		return power.ErrThrottled
	}
	return power.ErrFailed
}

// reason is the message of a Status, or the HTTP status.
func reason(resp *http.Response, body []byte) error {
	var status struct{ Message string }
	if json.Unmarshal(body, &status) == nil && status.Message != "" {
		return errors.New(status.Message[:min(len(status.Message), 500)])
	}
	return errors.New(resp.Status)
}
