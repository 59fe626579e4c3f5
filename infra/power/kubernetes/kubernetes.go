// Package kubernetes is the power driver for hosts that are one pod each: Wake scales a StatefulSet or Deployment to
// one replica, Sleep to none. The cluster's own autoscaler adds and removes the node.
//
// It uses the subresource scale, so a Role needs no more than get and patch of it:
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
	_, err := d.scale(ctx, host, http.MethodPatch, `{"spec":{"replicas":1}}`)
	return err
}

// Sleep scales the host's workload to none.
func (d *Driver) Sleep(ctx context.Context, host catalog.Host) error {
	_, err := d.scale(ctx, host, http.MethodPatch, `{"spec":{"replicas":0}}`)
	return err
}

// State compares the desired replicas with those that exist. A pod that waits for a node exists, so its host is On;
// only the host's registration shows that its runner works.
func (d *Driver) State(ctx context.Context, host catalog.Host) (power.Power, error) {
	s, err := d.scale(ctx, host, http.MethodGet, "")
	if err != nil {
		return power.Unknown, err
	}
	return s.power(), nil
}

// scale is the part of autoscaling/v1's Scale that counts. The API leaves out zeros.
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

// scale gets or patches the scale of the host's workload.
func (d *Driver) scale(ctx context.Context, host catalog.Host, method, patch string) (scale, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c, err := d.cfg.Cluster()
	if err != nil {
		return scale{}, fmt.Errorf("%w: %w", power.ErrDenied, err)
	}
	kind, name, ok := strings.Cut(host.Workload, "/")
	if !ok {
		return scale{}, fmt.Errorf("%w: workload %q is not KIND/NAME", power.ErrUnknownHost, host.Workload)
	}
	namespace := cmp.Or(host.Namespace, c.Namespace)
	what := method + " scale of " + host.Workload + " in namespace " + namespace
	target, err := url.JoinPath(c.URL, "apis/apps/v1/namespaces", url.PathEscape(namespace), url.PathEscape(kind)+"s", url.PathEscape(name), "scale")
	if err != nil {
		return scale{}, fmt.Errorf("%w: %w", power.ErrDenied, err)
	}
	req, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(patch))
	if err != nil {
		return scale{}, fmt.Errorf("%w: %w", power.ErrDenied, err)
	}
	req.Header.Set("Accept", "application/json")
	if patch != "" {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := c.Client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return scale{}, err
		}
		return scale{}, fmt.Errorf("%w: %w", power.ErrThrottled, err) // the caller retries an unavailable API server
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return scale{}, fmt.Errorf("%w: %w", power.ErrThrottled, err)
	}
	if resp.StatusCode/100 != 2 {
		return scale{}, fmt.Errorf("%w: %s: %w", classify(resp.StatusCode), what, reason(resp, body))
	}
	var s scale
	if err := json.Unmarshal(body, &s); err != nil || s.Kind != "Scale" {
		return scale{}, fmt.Errorf("%w: %s: the response is not a Scale", power.ErrFailed, what)
	}
	return s, nil
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
		return errors.New(status.Message[:min(len(status.Message), 500)])
	}
	return errors.New(resp.Status)
}
