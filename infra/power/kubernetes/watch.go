package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/power"
)

// maxEvents bounds the list of events that one look reads.
const maxEvents = "200"

// Reasons of the events that count.
const (
	failedCreate = "FailedCreate"      // of a controller that may not create the pod, such as for a quota
	noScaleUp    = "NotTriggerScaleUp" // of the Cluster Autoscaler: it adds no node
	scaleUp      = "TriggeredScaleUp"  // of the Cluster Autoscaler: a node comes
	nominated    = "Nominated"         // of Karpenter: a node comes
	unplaceable  = "Unschedulable"     // reason of a pod's condition
	hasNode      = "PodScheduled"      // type of a pod's condition
)

// pod is the part of a Pod that counts.
type pod struct {
	Metadata struct {
		UID, DeletionTimestamp string
	}
	Status struct {
		Conditions []struct{ Type, Status, Reason, Message string }
	}
}

// event is the part of an Event that counts.
type event struct {
	Reason, Message string
	LastTimestamp   time.Time // zero in events that have only an EventTime
	EventTime       time.Time
	InvolvedObject  struct{ Kind, Name string }
}

func (e event) at() time.Time {
	if e.LastTimestamp.After(e.EventTime) {
		return e.LastTimestamp
	}
	return e.EventTime
}

// look is what the cluster says about a host's pod.
type look struct {
	placed   bool   // it has a node
	problem  string // why it has none, or does not exist
	final    bool   // the cluster will not change that
	nodeAdds bool   // an autoscaler has announced a node
}

// watch waits until the workload's pod has a node. It returns nil as well if that takes too long for the caller, and
// if the driver may not list pods. since is when the workload was scaled up, by the API server's clock.
func (d *Driver) watch(ctx context.Context, host catalog.Host, s scale, since time.Time) error {
	end := time.Now().Add(watchFor)
	if d, ok := ctx.Deadline(); ok && d.Add(-returnAhead).Before(end) {
		end = d.Add(-returnAhead)
	}
	for unplaced := (time.Time{}); ; {
		l, err := d.look(ctx, host, s, since)
		switch {
		case errors.Is(err, power.ErrThrottled): // look again
		case errors.Is(err, power.ErrDenied): // by a Role that allows only the scale
			return nil
		case err != nil:
			return err
		case l.placed:
			return nil
		case l.problem == "" || l.nodeAdds:
			unplaced = time.Time{}
		case unplaced.IsZero():
			unplaced = time.Now()
		}
		if l.final || !unplaced.IsZero() && time.Since(unplaced) > d.cfg.Unplaced {
			return fmt.Errorf("%w: %s: %s", power.ErrNoCapacity, host.Workload, shorten(l.problem))
		}
		if time.Now().After(end) {
			return nil
		}
		select {
		case <-time.After(d.cfg.Poll):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		switch again, _, err := d.scale(ctx, host, http.MethodGet, ""); {
		case errors.Is(err, power.ErrThrottled):
		case err != nil:
			return err
		case again.Spec.Replicas < pods(host):
			return fmt.Errorf("%w: %s was put to sleep meanwhile", power.ErrStopping, host.Workload)
		default:
			s = again
		}
	}
}

// look reads the host's pod and the events about it.
func (d *Driver) look(ctx context.Context, host catalog.Host, s scale, since time.Time) (look, error) {
	if s.Status.Selector == "" { // its controller has not seen it yet
		return look{}, nil
	}
	kind, name, _ := strings.Cut(host.Workload, "/")
	var list struct{ Items []pod }
	query := url.Values{"labelSelector": {s.Status.Selector}}
	if host.Of != "" { // the pods of a large group exceed maxReply
		query.Set("fieldSelector", fmt.Sprintf("metadata.name=%s-%d", name, host.Slot-1))
	}
	if _, err := d.call(ctx, host, http.MethodGet, []string{"api/v1/namespaces", "", "pods"}, query, "", &list); err != nil {
		return look{}, err
	}
	for _, p := range list.Items {
		if p.Metadata.DeletionTimestamp == "" {
			return d.lookAtPod(ctx, host, p)
		}
	}
	if s.Status.Replicas >= pods(host) {
		return look{}, nil // the last one is still ending
	}
	events, err := d.events(ctx, host, "reason="+failedCreate)
	if err != nil {
		return look{}, err
	}
	for _, e := range events {
		of := e.InvolvedObject
		hash, isReplicaSet := strings.CutPrefix(of.Name, name+"-") // of a deployment
		mine := of.Name == name && strings.EqualFold(of.Kind, kind) || of.Kind == "ReplicaSet" && isReplicaSet && !strings.Contains(hash, "-")
		if mine && !e.at().Before(since) {
			return look{problem: e.Message, final: true}, nil
		}
	}
	return look{}, nil
}

// lookAtPod returns whether a pod has a node and, if it has none, what the scheduler and autoscalers say about that.
func (d *Driver) lookAtPod(ctx context.Context, host catalog.Host, p pod) (look, error) {
	var l look
	for _, c := range p.Status.Conditions {
		if c.Type != hasNode {
			continue
		}
		l.placed = c.Status == "True"
		if c.Status == "False" && c.Reason == unplaceable {
			l.problem = c.Message
		}
	}
	if l.placed || l.problem == "" {
		return l, nil
	}
	events, err := d.events(ctx, host, "involvedObject.uid="+p.Metadata.UID)
	if err != nil {
		return look{}, err
	}
	var newest event
	for _, e := range events {
		if (e.Reason == noScaleUp || e.Reason == scaleUp || e.Reason == nominated) && !e.at().Before(newest.at()) {
			newest = e
		}
	}
	switch newest.Reason {
	case noScaleUp:
		l.final = true
		l.problem += " " + newest.Message
	case scaleUp, nominated:
		l.nodeAdds = true
	}
	return l, nil
}

func (d *Driver) events(ctx context.Context, host catalog.Host, which string) ([]event, error) {
	var list struct{ Items []event }
	query := url.Values{"fieldSelector": {which}, "limit": {maxEvents}}
	_, err := d.call(ctx, host, http.MethodGet, []string{"api/v1/namespaces", "", "events"}, query, "", &list)
	return list.Items, err
}
