package catalog

import (
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"reveille/infra/policy"
)

var instanceRE = regexp.MustCompile(`^i-[0-9a-f]{8,17}$`)

// Names of Kubernetes: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
var (
	workloadRE  = regexp.MustCompile(`^(statefulset|deployment)/[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
	namespaceRE = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
)

func (c *checker) host(h *Host, p yamlPath) {
	if !ValidHostName(h.Name) {
		c.add(p, hostNameHint, "bad host name %q", clip(h.Name))
	}
	for i, l := range h.Labels {
		if !ValidHostName(l) {
			c.add(p.child("labels").index(i), hostNameHint, "bad label %q", clip(l))
		}
	}
	if h.Address != "" && !validAddress(h.Address) {
		c.add(p.child("address"), `host:port of the runner, such as "192.0.2.10:8090"`, "bad address %q", clip(h.Address))
	}
	c.seats(h, p.child("npu_seats"))
	c.memory(h, p.child("memory"))
	if !slices.Contains(drivers, h.Driver) {
		var names []string
		for _, d := range drivers {
			names = append(names, string(d))
		}
		if h.Driver == "" {
			c.add(p, didYouMean("", names), "driver is missing")
		} else {
			c.add(p.child("driver"), didYouMean(string(h.Driver), names), "unknown driver %q", clip(string(h.Driver)))
		}
		return
	}
	c.driver(h, p)
}

// driver checks that a host has what its driver needs, and nothing of another driver's.
func (c *checker) driver(h *Host, p yamlPath) {
	if h.Devices == 0 && h.Driver != DriverLocal && !c.blamed(p.child("devices")) {
		c.add(p, "a sleeping host cannot be asked for them", "devices is missing")
	}
	for _, f := range [...]struct {
		name     string
		set      bool
		required bool
		of       []Driver
	}{
		{"mac", h.MAC != "", true, []Driver{DriverWoL}},
		{"broadcast", h.Broadcast != "", false, []Driver{DriverWoL}},
		{"instance", h.Instance != "", true, []Driver{DriverEC2}},
		{"hibernate", h.Hibernate, false, []Driver{DriverEC2}},
		{"group", h.Group != "", true, []Driver{DriverASG}},
		{"max", h.Max != 0, false, []Driver{DriverASG}},
		{"region", h.Region != "", false, []Driver{DriverEC2, DriverASG}},
		{"workload", h.Workload != "", true, []Driver{DriverKubernetes}},
		{"namespace", h.Namespace != "", false, []Driver{DriverKubernetes}},
		{"commands", h.Commands != nil, true, []Driver{DriverExec}},
	} {
		mine := slices.Contains(f.of, h.Driver)
		switch {
		case f.set && !mine:
			c.add(p.child(f.name), "", "%s belongs to driver %s, not %s", f.name, f.of[0], h.Driver)
		case !f.set && mine && f.required && c.at[p.child(f.name)].line == 0:
			c.add(p, "", "%s is missing: driver %s needs it", f.name, h.Driver)
		}
	}
	switch h.Driver {
	case DriverWoL:
		if mac, err := net.ParseMAC(h.MAC); h.MAC != "" && (err != nil || len(mac) != 6) {
			c.add(p.child("mac"), `six bytes in quotes, such as "00:11:22:33:44:55"`, "bad hardware address %q", clip(h.MAC))
		}
		if h.Broadcast != "" && !validAddress(h.Broadcast) {
			c.add(p.child("broadcast"), `host:port of UDP, such as "192.0.2.255:9"`, "bad address %q", clip(h.Broadcast))
		}
	case DriverEC2:
		if h.Instance != "" && !instanceRE.MatchString(h.Instance) {
			c.add(p.child("instance"), "such as i-0123456789abcdef0", "bad instance id %q", clip(h.Instance))
		}
	case DriverASG:
		h.Max = max(h.Max, 1)
	case DriverKubernetes:
		if h.Workload != "" && !workloadRE.MatchString(h.Workload) {
			c.add(p.child("workload"), "statefulset/NAME or deployment/NAME", "bad workload %q", clip(h.Workload))
		}
		if h.Namespace != "" && !namespaceRE.MatchString(h.Namespace) {
			c.add(p.child("namespace"), "small letters, digits and -", "bad namespace %q", clip(h.Namespace))
		}
	case DriverExec:
		if h.Commands != nil {
			for _, cmd := range [...]struct {
				name string
				argv []string
			}{{"wake", h.Commands.Wake}, {"sleep", h.Commands.Sleep}} {
				if len(cmd.argv) == 0 {
					c.add(p.child("commands"), "", "%s is missing: driver exec needs it", cmd.name)
				}
			}
		}
	}
}

func (c *checker) seats(h *Host, p yamlPath) {
	for _, t := range slices.Sorted(maps.Keys(h.NPUSeats)) {
		c.typeOK(p.child(string(t)), string(t))
	}
	if len(h.NPUSeats) > 0 && !h.Has(policy.NPU) {
		c.add(p, "", "seats of an NPU that the host does not have")
	}
}

func (c *checker) memory(h *Host, p yamlPath) {
	kinds := []string{"cpu", "gpu", "npu"}
	for _, name := range slices.Sorted(maps.Keys(h.Memory)) {
		d, _ := policy.ParseDevices(name)
		switch at := p.child(name); {
		case !slices.Contains(kinds, name):
			c.add(at, didYouMean(name, kinds), "unknown device %q", clip(name))
		case h.Memory[name] == 0 && !c.blamed(at):
			c.add(at, "such as 24GiB", "a size above 0 is missing")
		case !h.Has(d):
			c.add(at, "", "memory of a device that the host does not have: %s", name)
		}
	}
}

func validAddress(s string) bool {
	host, port, err := net.SplitHostPort(s)
	n, perr := strconv.Atoi(port)
	return err == nil && perr == nil && host != "" && n >= 1 && n <= 65535 && !strings.ContainsAny(host, " /@")
}
