package sim

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"reveille/infra/awsquery"
	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/power/asg"
	"reveille/testenv/check"
)

// groupName is the name of the group of a scenario, in the catalog and at its cloud.
const groupName = "h"

// Times of a group's cloud.
const (
	launchesAgain = time.Minute // after a launch that failed
	spotNotice    = 2 * time.Minute
	powersOff     = 2 * time.Second
	restartsAfter = time.Second // a runner that ended
)

// scalingGroup is an Auto Scaling group with its cloud, as the real driver calls it: it launches machines until it has
// as many as desired, ends those that it is told to, and replaces those that are reclaimed. A machine that has booted
// claims a slot, and its host's runner starts.
type scalingGroup struct {
	w *world

	mu       sync.Mutex
	desired  int
	machines []*groupMachine // that are not gone
	serial   int
	refuse   int // so many launches still fail for want of capacity
	deaf     int // so many machines still come up without a runner
	failed   []failedLaunch
	wrong    []string // what should never happen
	most     int      // machines at a time
}

// groupMachine is one of its machines.
type groupMachine struct {
	id     string
	since  time.Time
	state  string // as AWS calls it
	runner *runner
	notice bool // it will be taken away
}

type failedLaunch struct {
	id int
	at time.Time
}

func newScalingGroup(w *world) *scalingGroup { return &scalingGroup{w: w} }

func (g *scalingGroup) set(change func(*scalingGroup)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(g)
}

// live are the machines that are not about to go. g.mu is held.
func (g *scalingGroup) live() (out []*groupMachine) {
	for _, m := range g.machines {
		if m.state != "Terminating" {
			out = append(out, m)
		}
	}
	return out
}

// level launches what is missing. g.mu is held.
func (g *scalingGroup) level() {
	for len(g.live()) < g.desired && !g.w.isEnding() {
		g.serial++
		if g.refuse > 0 {
			g.refuse--
			g.failed = append(g.failed, failedLaunch{g.serial, time.Now()})
			time.AfterFunc(launchesAgain, func() { g.set((*scalingGroup).level) })
			return
		}
		m := &groupMachine{id: fmt.Sprint("i-", g.serial), since: time.Now(), state: "Pending"}
		g.machines = append(g.machines, m)
		g.most = max(g.most, len(g.live()))
		deaf := g.deaf > 0
		if deaf {
			g.deaf--
		}
		took := g.w.scenario.Copies.Wake
		if took == 0 {
			took = time.Duration(200+chance(g.w.scenario.Seed, "wake", m.id, "")%3000) * time.Millisecond
		}
		time.AfterFunc(took, func() { g.booted(m, deaf) })
	}
	if len(g.live()) > len(g.w.runners) {
		g.wrong = append(g.wrong, fmt.Sprintf("%d machines of at most %d", len(g.live()), len(g.w.runners)))
	}
}

// booted is a machine that came up: it claims a slot until it has one, and its runner starts.
func (g *scalingGroup) booted(m *groupMachine, deaf bool) {
	var names []string
	for _, r := range g.w.runners {
		names = append(names, r.name)
	}
	g.set(func(g *scalingGroup) {
		if m.state == "Pending" {
			m.state = "InService"
		}
	})
	if deaf {
		g.w.record(check.Event{Kind: check.WakeFailed})
		return
	}
	for !g.w.isEnding() {
		host, err := g.w.operator.ClaimSlot(context.Background(), m.id, names)
		if err == nil {
			r := g.w.runners[slices.Index(names, host)]
			g.set(func(g *scalingGroup) {
				if m.state != "InService" {
					return
				}
				for _, other := range g.machines {
					if other.runner == r && other.state != "Terminating" && !other.notice {
						g.wrong = append(g.wrong, fmt.Sprintf("%s and %s are both %s", other.id, m.id, r.name))
					}
				}
				m.runner = r
				r.crash() // of a machine that is gone
				r.mu.Lock()
				r.instance = m.id
				r.mu.Unlock()
				r.machine.set(func(machine *machine) { machine.power, machine.since = power.On, m.since })
				r.start()
			})
			return
		}
		time.Sleep(2 * time.Second)
	}
}

// claimAgain is a machine whose runner has lost its slot and ends: the system starts it again, and it claims a slot.
func (g *scalingGroup) claimAgain(r *runner, id string) {
	g.set(func(g *scalingGroup) {
		for _, m := range g.live() {
			if m.id != id || m.runner != r {
				continue
			}
			m.runner = nil
			if !slices.ContainsFunc(g.live(), func(other *groupMachine) bool { return other.runner == r }) {
				r.machine.set(func(machine *machine) { machine.power = power.Off })
			}
			time.AfterFunc(restartsAfter, func() { g.booted(m, false) })
		}
	})
}

// end ends a machine: its runner stops in order if that is given time, and it is gone later. g.mu is held.
func (g *scalingGroup) end(m *groupMachine, later time.Duration) {
	if m.state == "Terminating" {
		return
	}
	m.state = "Terminating"
	if m.runner != nil {
		g.w.record(check.Event{Kind: check.PowerOff, Host: m.runner.name})
		m.runner.machine.set(func(machine *machine) { machine.power = power.Stopping })
	}
	time.AfterFunc(later, func() {
		g.set(func(g *scalingGroup) {
			g.machines = slices.DeleteFunc(g.machines, func(other *groupMachine) bool { return other == m })
			if r := m.runner; r != nil && !slices.ContainsFunc(g.machines, func(other *groupMachine) bool { return other.runner == r }) {
				r.crash()
				r.machine.set(func(machine *machine) { machine.power = power.Off })
			}
			g.level()
		})
	})
}

// reclaim is a notice that a host's machine will be taken away: its runner drains, and the group replaces the machine.
func (g *scalingGroup) reclaim(r *runner) {
	g.set(func(g *scalingGroup) {
		for _, m := range g.live() {
			if m.runner == r {
				m.notice = true
				r.stop()
				time.AfterFunc(spotNotice, func() {
					g.set(func(g *scalingGroup) { g.end(m, powersOff) })
				})
			}
		}
	})
}

// mend ends what is wrong: launches do not fail any more, and machines under notice go now.
func (g *scalingGroup) mend() {
	g.set(func(g *scalingGroup) {
		g.refuse, g.deaf = 0, 0
		for _, m := range g.live() {
			if m.notice {
				g.end(m, powersOff)
			}
		}
	})
}

// faults are what should never be: more machines than slots, a slot with two, a machine with two slots, and a machine
// that was ended although its slot was not asleep.
func (g *scalingGroup) faults(k *keys) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := g.wrong
	slots := map[string]string{}
	for _, r := range g.w.runners {
		if id := k.hashes["host:"+r.name]["machine"]; id != "" {
			if slots[id] != "" {
				out = append(out, fmt.Sprintf("machine %s has the slots %s and %s", id, slots[id], r.name))
			}
			slots[id] = r.name
		}
	}
	return out
}

// billed lists the running machines, as their cloud does.
func (g *scalingGroup) billed() (out []power.Machine) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range g.live() {
		out = append(out, power.Machine{ID: m.id, Host: groupName, Since: m.since})
	}
	return out
}

// driver is the real driver with this cloud.
func (g *scalingGroup) driver() power.Driver {
	settings := aws.Config{
		Region: "r", Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""), HTTPClient: &http.Client{Transport: g},
	}
	return slots{g.w, asg.New(asg.Config{
		Client: func(context.Context, string) (*awsquery.Client, error) { return awsquery.AutoScaling(settings), nil },
		EC2:    func(context.Context, string) (*awsquery.Client, error) { return awsquery.EC2(settings), nil },
	}).WithPool(g.w.operator)}
}

// slots tells the checker what becomes of hosts that have no machine yet.
type slots struct {
	w *world
	power.Driver
}

// Wake implements power.Driver.
func (s slots) Wake(ctx context.Context, host catalog.Host) error {
	r := machines{s.w}.find(host)
	err := s.Driver.Wake(ctx, host)
	if err != nil {
		s.w.record(check.Event{Kind: check.WakeFailed, Host: host.Name})
		return err
	}
	r.machine.set(func(m *machine) {
		if m.power == power.Off {
			m.power = power.Starting
		}
	})
	return nil
}

// Sleep implements power.Driver.
func (s slots) Sleep(ctx context.Context, host catalog.Host) error {
	r := machines{s.w}.find(host)
	err := s.Driver.Sleep(ctx, host)
	r.machine.set(func(m *machine) {
		if err == nil && m.power == power.Starting { // none has come
			m.power = power.Off
		}
	})
	return err
}

// RoundTrip answers the calls of the driver as Auto Scaling and EC2 do.
func (g *scalingGroup) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var b strings.Builder
	text := func(name, value string) {
		fmt.Fprintf(&b, "<%s>", name)
		_ = xml.EscapeText(&b, []byte(value))
		fmt.Fprintf(&b, "</%s>", name)
	}
	switch action := form.Get("Action"); action {
	case "DescribeAutoScalingGroups":
		b.WriteString("<R><DescribeAutoScalingGroupsResult><AutoScalingGroups><member>")
		text("DesiredCapacity", strconv.Itoa(g.desired))
		text("MaxSize", strconv.Itoa(len(g.w.runners)))
		b.WriteString("<AvailabilityZones><member>a</member></AvailabilityZones><Instances>")
		for _, m := range g.machines {
			b.WriteString("<member>")
			text("InstanceId", m.id)
			text("LifecycleState", m.state)
			b.WriteString("</member>")
		}
		b.WriteString("</Instances></member></AutoScalingGroups></DescribeAutoScalingGroupsResult></R>")
	case "DescribeScalingActivities":
		b.WriteString("<R><DescribeScalingActivitiesResult><Activities>")
		for _, f := range slices.Backward(g.failed) {
			details, _ := json.Marshal(map[string]string{"Availability Zone": "a"})
			b.WriteString("<member>")
			text("ActivityId", strconv.Itoa(f.id))
			text("StatusCode", "Failed")
			text("StatusMessage", "We currently do not have sufficient g6.xlarge capacity (InsufficientInstanceCapacity).")
			text("StartTime", f.at.UTC().Format(time.RFC3339Nano))
			text("Details", string(details))
			b.WriteString("</member>")
		}
		b.WriteString("</Activities></DescribeScalingActivitiesResult></R>")
	case "SetDesiredCapacity":
		n, _ := strconv.Atoi(form.Get("DesiredCapacity"))
		if n < len(g.live()) {
			g.wrong = append(g.wrong, fmt.Sprintf("a size of %d would end any of %d machines", n, len(g.live())))
		}
		g.desired = n
		g.level()
		b.WriteString("<R/>")
	case "TerminateInstanceInAutoScalingGroup":
		for _, m := range g.live() {
			if m.id == form.Get("InstanceId") {
				g.desired--
				g.judgeEnd(m)
				g.end(m, powersOff)
			}
		}
		b.WriteString("<R/>")
	case "DescribeInstances":
		b.WriteString("<R><reservationSet><item><instancesSet>")
		for _, m := range g.machines {
			asked := false
			for name := range form {
				asked = asked || strings.HasPrefix(name, "InstanceId.") && form.Get(name) == m.id
			}
			if !asked {
				continue
			}
			b.WriteString("<item>")
			text("instanceId", m.id)
			text("launchTime", m.since.UTC().Format(time.RFC3339Nano))
			b.WriteString("</item>")
		}
		b.WriteString("</instancesSet></item></reservationSet></R>")
	default:
		return nil, fmt.Errorf("unexpected call %s", action)
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(b.String())), Request: req}, nil
}

// judgeEnd notes that a machine is ended whose host serves.
func (g *scalingGroup) judgeEnd(m *groupMachine) {
	if m.runner == nil {
		return
	}
	key := prefix + "host:" + m.runner.name
	if state := g.w.redis.HGet(key, "state"); state != "asleep" && g.w.redis.HGet(key, "machine") == m.id {
		g.wrong = append(g.wrong, fmt.Sprintf("machine %s is ended while %s is %s", m.id, m.runner.name, state))
	}
}
