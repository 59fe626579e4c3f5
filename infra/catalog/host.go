package catalog

import (
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"reveille/infra/policy"
	"reveille/infra/recipe"
)

// Driver is the way a host is woken and put to sleep.
type Driver string

// The drivers.
const (
	DriverLocal Driver = "local" // a process on the gateway's own machine
	DriverWoL   Driver = "wol"   // Wake-on-LAN
	DriverEC2   Driver = "ec2"   // one EC2 instance that is started and stopped
	DriverASG   Driver = "asg"   // a machine of an Auto Scaling group
	DriverExec  Driver = "exec"  // the operator's own commands

	DriverKubernetes Driver = "kubernetes" // a pod of a StatefulSet or Deployment
)

// A Host is a machine. An entry of the hosts section is one, or a group of up to Max equal ones: each slot of the group
// is a host of its own.
type Host struct {
	// Name is unique in the catalog; models name it in their hosts list.
	Name string `json:"name" yaml:"-"`
	// Of is the name of the group that the host is a slot of, which is also one of its labels; "" for a single host.
	Of string `json:"of,omitempty" yaml:"-"`
	// Slot is its number in the group, from 1.
	Slot int `json:"slot,omitempty" yaml:"-"`
	// Driver is how the host is woken and put to sleep.
	Driver Driver `json:"driver"`
	// Devices are what the host has. Only a host with the driver local may leave them out; they are then detected.
	Devices policy.Devices `json:"devices,omitempty"`
	// Memory is what models may take, by kind of device: cpu, gpu, npu. What is not named is detected.
	Memory map[string]Size `json:"memory,omitempty"`
	// Labels are further names that models may use; several hosts may share one.
	Labels recipe.List[string] `json:"labels,omitempty"`
	// MAC is the hardware address that the driver wol wakes, in quotes.
	MAC string `json:"mac,omitempty"`
	// SecureOn is the SecureOn password of the driver wol, 4 or 6 bytes in quotes, if the network card wants one.
	SecureOn string `json:"secure_on,omitempty"`
	// Broadcast is the destination of the packets of the driver wol, host:port of UDP; by default 255.255.255.255:9.
	//
	// It may be the machine's own address if its switch or router keeps its hardware address.
	Broadcast string `json:"broadcast,omitempty"`
	// Address is the runner's host:port; by default the runner reports it when it registers.
	Address string `json:"address,omitempty"`
	// Group is the Auto Scaling group of the driver asg.
	Group string `json:"group,omitempty"`
	// Max makes the entry a group of up to so many machines, the hosts NAME-1, NAME-2 and so on; by default it is one
	// host.
	Max int `json:"max,omitempty"`
	// Instance is the instance of the driver ec2, such as i-0123456789abcdef0.
	Instance string `json:"instance,omitempty"`
	// Hibernate makes the driver ec2 keep the memory of an instance that was launched with hibernation.
	Hibernate bool `json:"hibernate,omitempty"`
	// Region is the AWS region of the drivers ec2 and asg; by default that of the environment.
	Region string `json:"region,omitempty"`
	// Workload is what the driver kubernetes scales: statefulset/NAME or deployment/NAME.
	Workload string `json:"workload,omitempty"`
	// Namespace is the workload's namespace; by default that of the pod, or of the kubeconfig.
	Namespace string `json:"namespace,omitempty"`
	// Commands are those of the driver exec, started without a shell.
	Commands *Commands `json:"commands,omitempty"`
	// NPUSeats is how many models of each type share the NPU; by default one model, whatever its type.
	NPUSeats map[policy.Type]int `json:"npu_seats,omitempty"`
	// Price is what an hour awake costs, in dollars, for gateway cost, the page and --evict cost.
	Price float64 `json:"price,omitempty"`
	// Idle is how long the host may be without work before it is put to sleep; by default the warmer's --host-idle.
	Idle *Duration `json:"idle,omitempty"`
	// Rest is when the host is not woken, in the gateway's and the warmer's time zone.
	Rest *Period `json:"rest,omitempty"`
	// DailyHostHours is how many hours the host may be awake on a day of UTC; then it is not woken any more that day.
	DailyHostHours float64 `json:"daily_host_hours,omitempty"`
}

// Commands are argument vectors that change and report a host's power state.
type Commands struct {
	// Wake is the command and its arguments that turn the host on.
	Wake recipe.List[string] `json:"wake"`
	// Sleep is the command that turns it off.
	Sleep recipe.List[string] `json:"sleep"`
	// State is a command that exits with status 0 when the host is on and with another when it is off; by default the
	// runner's heartbeat decides.
	State recipe.List[string] `json:"state,omitempty"`
}

// SecureOnPassword returns the bytes of SecureOn, nil if it is empty or malformed.
func (h *Host) SecureOnPassword() []byte {
	p, err := hex.DecodeString(strings.ReplaceAll(h.SecureOn, ":", ""))
	if err != nil || len(p) != 4 && len(p) != 6 {
		return nil
	}
	return p
}

// Answers reports whether name is the host's name or one of its labels.
func (h *Host) Answers(name string) bool { return h.Name == name || slices.Contains(h.Labels, name) }

// Has reports whether the host has all of the devices; a host with unknown devices may have any.
func (h *Host) Has(d policy.Devices) bool { return h.Devices == 0 || h.Devices.Has(d) }

// maxSlots bounds the hosts of a group.
const maxSlots = 100

// slots returns the hosts that an entry stands for: those of a group, or itself.
func (h *Host) slots() []*Host {
	group := h.Driver == DriverASG || h.Driver == DriverKubernetes
	if !group || h.Max <= 1 || h.Max > maxSlots {
		return []*Host{h}
	}
	out := make([]*Host, h.Max)
	for i := range out {
		slot := *h
		slot.Of, slot.Slot, slot.Name = h.Name, i+1, SlotName(h.Name, i+1)
		slot.Labels = append(slices.Clone(h.Labels), h.Name)
		out[i] = &slot
	}
	return out
}

// SlotName is the name of the host that is slot n of a group.
func SlotName(group string, n int) string { return group + "-" + strconv.Itoa(n) }

// Slots returns the hosts of a group in order, none if there is no such group.
func (c *Catalog) Slots(group string) []*Host {
	var out []*Host
	for _, h := range c.Hosts {
		if h.Of == group && group != "" {
			out = append(out, h)
		}
	}
	return out
}
