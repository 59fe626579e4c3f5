// Package kubernetes is the power driver for hosts that are one pod each: Wake scales a StatefulSet or Deployment to
// one replica, Sleep to none. The cluster's own autoscaler adds and removes the node.
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
}

// Driver scales workloads. It has nothing to close.
type Driver struct{ cfg Config }

// New creates a driver.
func New(cfg Config) *Driver {
	cfg.Poll = cmp.Or(max(cfg.Poll, 0), 2*time.Second)
	cfg.Unplaced = cmp.Or(max(cfg.Unplaced, 0), 30*time.Second)
	return &Driver{cfg}
}

// Wake scales the host's workload to one replica and returns when its pod has a node. A pod that is still ending does
// not matter: the cluster starts the next one. power.ErrNoCapacity, with the cluster's words: a quota refuses the pod,
// the autoscaler adds no node for it, or it has no node after Config.Unplaced and none is announced. The workload is
// then scaled to none again.
func (d *Driver) Wake(ctx context.Context, host catalog.Host) error {
	s, since, err := d.scale(ctx, host, http.MethodPatch, `{"spec":{"replicas":1}}`)
	if err != nil {
		return err
	}
	err = d.watch(ctx, host, s, since)
	if errors.Is(err, power.ErrNoCapacity) {
		if back := d.Sleep(context.WithoutCancel(ctx), host); back != nil {
			err = errors.Join(err, back)
		}
	}
	return err
}

// Sleep scales the host's workload to none.
func (d *Driver) Sleep(ctx context.Context, host catalog.Host) error {
	_, _, err := d.scale(ctx, host, http.MethodPatch, `{"spec":{"replicas":0}}`)
	return err
}

// State compares the desired replicas with those that exist. A pod that waits for a node exists, so its host is On;
// only the host's registration shows that its runner works.
func (d *Driver) State(ctx context.Context, host catalog.Host) (power.Power, error) {
	s, _, err := d.scale(ctx, host, http.MethodGet, "")
	if err != nil {
		return power.Unknown, err
	}
	return s.power(), nil
}

// scale is the part of autoscaling/v1's Scale that counts. The API leaves out zeros.
type scale struct {
	Kind   string `json:"kind"`
	Spec   struct{ Replicas int }
	Status struct {
		Replicas int
		Selector string // of the workload's pods
	}
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
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
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
	req, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(patch))
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

// reason returns the message of a Status, or the HTTP status.
func reason(resp *http.Response, body []byte) error {
	var status struct{ Message string }
	if json.Unmarshal(body, &status) == nil && status.Message != "" {
		return errors.New(shorten(status.Message))
	}
	return errors.New(resp.Status)
}

func shorten(message string) string { return strings.ToValidUTF8(message[:min(len(message), 500)], "") }
