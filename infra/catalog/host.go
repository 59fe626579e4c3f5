package catalog

import (
	"slices"

	"reveille/infra/policy"
)

// Driver is the way a host is woken and put to sleep.
type Driver string

// The drivers.
const (
	DriverLocal Driver = "local" // a process on the gateway's own machine
	DriverWoL   Driver = "wol"   // Wake-on-LAN
	DriverEC2   Driver = "ec2"   // one EC2 instance that is started and stopped
	DriverASG   Driver = "asg"   // an Auto Scaling group that is set to one machine or none
	DriverExec  Driver = "exec"  // the operator's own commands

	DriverKubernetes Driver = "kubernetes" // a StatefulSet or Deployment that is scaled to one pod or none
)

var drivers = []Driver{DriverLocal, DriverWoL, DriverEC2, DriverASG, DriverExec, DriverKubernetes}

// A Host is one entry of the hosts section: a machine, or a group of equal machines with the driver asg.
type Host struct {
	// Name is unique in the catalogue; models name it in their hosts list.
	Name string `json:"name"`
	// Driver is always one of the known ones.
	Driver Driver `json:"driver"`
	// Devices are the devices that it has. Empty, which only the driver local allows, leaves them to the runner to
	// detect.
	Devices policy.Devices `json:"-"`
	// Memory is how many bytes models may take, by kind of device (cpu, gpu, npu). A kind that is not named is left to
	// the runner.
	Memory map[string]int64 `json:"memory,omitempty"`
	// Labels are further names that models may use; several hosts may share one.
	Labels []string `json:"labels,omitempty"`
	// MAC is the hardware address that the driver wol wakes.
	MAC string `json:"mac,omitempty"`
	// Broadcast is the destination of the packets of the driver wol, host:port of UDP: a network's broadcast address,
	// or the machine's own if its switch or router keeps its hardware address. Empty is 255.255.255.255:9.
	Broadcast string `json:"broadcast,omitempty"`
	// Address is the runner's host:port; empty if the runner reports it at registration.
	Address string `json:"address,omitempty"`
	// Group is the Auto Scaling group of the driver asg. Max is the most machines that it should have (1 or more); it
	// is shown and not enforced.
	Group string `json:"group,omitempty"`
	Max   int    `json:"max,omitempty"`
	// Instance is the instance id of the driver ec2.
	Instance string `json:"instance,omitempty"`
	// Hibernate makes the driver ec2 keep the memory of an instance that was launched with hibernation; others are
	// stopped.
	Hibernate bool `json:"hibernate,omitempty"`
	// Region is the AWS region of the drivers ec2 and asg; empty means that of the environment.
	Region string `json:"region,omitempty"`
	// Workload is what the driver kubernetes scales: statefulset/NAME or deployment/NAME. Namespace is its namespace;
	// empty means that of the program's pod, or of its kubeconfig.
	Workload  string `json:"workload,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	// Commands are those of the driver exec; nil for the others.
	Commands *Commands `json:"commands,omitempty"`
	// NPUSeats is how many models of each type share the NPU; empty means one NPU model, whatever its type.
	NPUSeats map[policy.Type]int `json:"npu_seats,omitempty"`
	// Price is what an hour awake costs, in any one currency, for the page and --evict cost; 0 if unset.
	Price float64 `json:"price,omitempty"`
}

// Commands are argument vectors, started without a shell, that change and report a host's power state.
type Commands struct {
	Wake  []string `json:"wake"`
	Sleep []string `json:"sleep"`
	// State ends with status 0 when the host is on and another when it is off; empty leaves it to the heartbeat.
	State []string `json:"state,omitempty"`
}

// Answers reports whether name is the host's name or one of its labels.
func (h *Host) Answers(name string) bool { return h.Name == name || slices.Contains(h.Labels, name) }

// Has reports whether the host has all of the devices; a host with unknown devices may have any.
func (h *Host) Has(d policy.Devices) bool { return h.Devices == 0 || h.Devices.Has(d) }
