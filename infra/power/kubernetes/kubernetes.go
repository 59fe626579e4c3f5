// Package kubernetes is the power driver for hosts that are one pod each: Wake scales a StatefulSet or Deployment to
// one replica, Sleep to none. The cluster's own autoscaler adds and removes the node.
//
// A StatefulSet may also be a group of hosts (catalog.Host.Of): slot n is its pod n-1. Kubernetes removes the last pods
// first, so slot n is on while the StatefulSet has at least n replicas, and goes to sleep only as the last one.
//
// It reads and sets the subresource scale, and lists pods and events to learn why a pod has no node:
// https://kubernetes.io/docs/reference/kubernetes-api/autoscaling-resources/scale-v1/
package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/power"
)

var _ power.Driver = (*Driver)(nil)

// Bounds on one call to the API server.
const (
	callTimeout = 15 * time.Second
	maxReply    = 1 << 20
)

// Cluster is an API server, with a client that authenticates to it and verifies its certificate.
type Cluster struct {
	URL       string // without a path
	Namespace string // of hosts that name none
	Client    *http.Client
}

// Wake follows the pod for watchFor, and stops returnAhead of its context's deadline: a node that comes later still
// starts the pod.
const (
	watchFor    = 5 * time.Minute
	returnAhead = 5 * time.Second
)

// Config of a Driver. Cluster is required; another zero value means the default.
type Config struct {
	// Cluster finds the API server. It is called for every operation.
	Cluster func() (Cluster, error)
	// Poll is the time between two looks at the pod; default 2 s.
	Poll time.Duration
	// Unplaced is how long a pod may have no node while no autoscaler has announced one; default 30 s.
	Unplaced time.Duration
	// Wait is how long the sleep of a slot of a group waits for the slots after it to go; default 10 s.
	Wait time.Duration
}

// Driver scales workloads. It has nothing to close.
type Driver struct{ cfg Config }

// New creates a driver.
func New(cfg Config) *Driver {
	cfg.Poll = cmp.Or(max(cfg.Poll, 0), 2*time.Second)
	cfg.Unplaced = cmp.Or(max(cfg.Unplaced, 0), 30*time.Second)
	cfg.Wait = cmp.Or(max(cfg.Wait, 0), 10*time.Second)
	return &Driver{cfg}
}

// Wake scales the host's workload up to its pod and returns when the pod has a node. A pod that is still ending does
// not matter: the cluster starts the next one. power.ErrNoCapacity, with the cluster's words: a quota refuses the pod,
// the autoscaler adds no node for it, or it has no node after Config.Unplaced and none is announced. The workload is
// then scaled down again.
func (d *Driver) Wake(ctx context.Context, host catalog.Host) error {
	s, since, err := d.resize(ctx, host, func(now int) int {
		if host.Of == "" {
			return 1
		}
		return max(now, pods(host))
	})
	if err != nil {
		return err
	}
	err = d.watch(ctx, host, s, since)
	if errors.Is(err, power.ErrNoCapacity) {
		if _, _, back := d.resize(context.WithoutCancel(ctx), host, without(host)); back != nil {
			err = errors.Join(err, back)
		}
	}
	return err
}

// Sleep scales the host's workload down by its pod. power.ErrInUse: a pod with a higher number is on, and is still
// after Config.Wait.
func (d *Driver) Sleep(ctx context.Context, host catalog.Host) error {
	for end := time.Now().Add(d.cfg.Wait); ; {
		s, _, err := d.resize(ctx, host, without(host))
		if err != nil || s.Spec.Replicas < pods(host) {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%w: %s has %d pods, and the last one goes first", power.ErrInUse, host.Workload, s.Spec.Replicas)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(d.cfg.Poll):
		}
	}
}

// pods is how many replicas the workload has at least while the host is on.
func pods(host catalog.Host) int { return max(host.Slot, 1) }

// without returns the replicas of the workload without the host's pod. If that is not the last one, they stay.
func without(host catalog.Host) func(now int) int {
	return func(now int) int {
		if host.Of == "" || now == pods(host) {
			return pods(host) - 1
		}
		return now
	}
}

// resize sets the replicas of the host's workload to what want says for the present ones.
func (d *Driver) resize(ctx context.Context, host catalog.Host, want func(now int) int) (scale, time.Time, error) {
	for {
		s, at, err := d.scale(ctx, host, http.MethodGet, "")
		if err != nil || want(s.Spec.Replicas) == s.Spec.Replicas {
			return s, at, err
		}
		s, at, err = d.scale(ctx, host, http.MethodPatch, fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"spec":{"replicas":%d}}`,
			s.Metadata.ResourceVersion, want(s.Spec.Replicas)))
		if !errors.Is(err, errConflict) {
			return s, at, err
		}
	}
}

// State compares the desired replicas with those that exist. A pod that waits for a node exists, so its host is On;
// only the host's registration shows that its runner works.
func (d *Driver) State(ctx context.Context, host catalog.Host) (power.Power, error) {
	s, _, err := d.scale(ctx, host, http.MethodGet, "")
	if err != nil {
		return power.Unknown, err
	}
	return s.power(pods(host)), nil
}

// scale is the part of autoscaling/v1's Scale that counts. The API leaves out zeros.
type scale struct {
	Kind     string `json:"kind"`
	Metadata struct{ ResourceVersion string }
	Spec     struct{ Replicas int }
	Status   struct {
		Replicas int
		Selector string // of the workload's pods
	}
}

// power returns the state of the n-th pod.
func (s scale) power(n int) power.Power {
	switch {
	case s.Spec.Replicas >= n && s.Status.Replicas < n:
		return power.Starting
	case s.Spec.Replicas >= n:
		return power.On
	case s.Status.Replicas >= n:
		return power.Stopping
	}
	return power.Off
}

// scale gets or patches the scale of the host's workload, and returns the API server's time.
func (d *Driver) scale(ctx context.Context, host catalog.Host, method, patch string) (s scale, at time.Time, err error) {
	kind, name, ok := strings.Cut(host.Workload, "/")
	if !ok {
		return s, at, fmt.Errorf("%w: workload %q is not KIND/NAME", power.ErrUnknownHost, host.Workload)
	}
	group := "apps"
	if kind == "leaderworkerset" { // of a model served by recipe upstream
		group = "leaderworkerset.x-k8s.io"
	}
	path := []string{"apis/" + group + "/v1/namespaces", "", url.PathEscape(kind) + "s", url.PathEscape(name), "scale"}
	if at, err = d.call(ctx, host, method, path, nil, patch, &s); err == nil && s.Kind != "Scale" {
		err = fmt.Errorf("%w: %s scale of %s: the response is not a Scale", power.ErrFailed, method, host.Workload)
	}
	return s, at, err
}

// call makes a call and decodes its response into out. An empty element of path stands for the host's namespace.
func (d *Driver) call(ctx context.Context, host catalog.Host, method string, path []string, query url.Values, patch string, out any) (time.Time, error) {
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c, err := d.cfg.Cluster()
	if err != nil {
		return time.Time{}, fmt.Errorf("%w: %w", power.ErrDenied, err)
	}
	namespace := cmp.Or(host.Namespace, c.Namespace)
	what := method + " " + path[len(path)-1] + " of " + host.Workload + " in namespace " + namespace
	path = slices.Clone(path)
	path[slices.Index(path, "")] = url.PathEscape(namespace)
	target, err := url.JoinPath(c.URL, path...)
	if err != nil {
		return time.Time{}, fmt.Errorf("%w: %w", power.ErrDenied, err)
	}
	if query != nil {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(limited, method, target, strings.NewReader(patch))
	if err != nil {
		return time.Time{}, fmt.Errorf("%w: %w", power.ErrDenied, err)
	}
	req.Header.Set("Accept", "application/json")
	if patch != "" {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := c.Client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return time.Time{}, err
		}
		return time.Time{}, fmt.Errorf("%w: %w", power.ErrThrottled, err) // the caller retries an unavailable API server
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return time.Time{}, fmt.Errorf("%w: %w", power.ErrThrottled, err)
	}
	if resp.StatusCode/100 != 2 {
		return time.Time{}, fmt.Errorf("%w: %s: %w", classify(resp.StatusCode), what, reason(resp, body))
	}
	if err := json.Unmarshal(body, out); err != nil {
		return time.Time{}, fmt.Errorf("%w: %s: the response is not what was asked for", power.ErrFailed, what)
	}
	at, _ := http.ParseTime(resp.Header.Get("Date"))
	return at, nil
}

// errConflict: the workload has changed since it was read.
var errConflict = fmt.Errorf("%w: it has changed meanwhile", power.ErrThrottled)

// classify maps the API server's statuses to errors of package power.
func classify(status int) error {
	switch {
	case status == http.StatusNotFound:
		return power.ErrUnknownHost
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return power.ErrDenied
	case status == http.StatusConflict:
		return errConflict
	case status == http.StatusTooManyRequests || status >= 500:
		return power.ErrThrottled
	}
	return power.ErrFailed
}

// reason returns the message of a Status, or the HTTP status.
func reason(resp *http.Response, body []byte) error {
	var status struct{ Message string }
	if json.Unmarshal(body, &status) == nil && status.Message != "" {
		return errors.New(shorten(status.Message))
	}
	return errors.New(resp.Status)
}

func shorten(message string) string { return strings.ToValidUTF8(message[:min(len(message), 500)], "") }
