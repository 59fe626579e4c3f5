package policy_test

import (
	"fmt"
	"time"

	"reveille/infra/policy"
)

var noon = time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)

func ExampleNext() {
	h := policy.Host{
		Name: "gpu-1", State: policy.Ready, Devices: policy.CPU | policy.GPU, Limits: policy.Uniform(1),
		Residents: []policy.Resident{{ID: "gemma", Type: policy.LLM, Devices: policy.GPU, State: policy.ModelLoaded, InFlight: 1}},
		Queue: []policy.Ticket{
			{ID: "t1", Model: policy.Model{ID: "llama", Type: policy.LLM, Devices: policy.GPU}, Since: noon},
			{ID: "t2", Model: policy.Model{ID: "whisper", Type: policy.Audio, Devices: policy.CPU}},
		},
	}
	s := policy.Next(h, noon.Add(time.Second), 2*time.Second)
	fmt.Println(s.Ticket, s.Admission.Decision, "before", s.Overtakes)
	fmt.Println(s.Waits[0].Ticket, s.Waits[0].Reason, "until", s.Again.Format(time.TimeOnly))
	// Output:
	// t2 load before [t1]
	// t1 busy_victim: waits for gemma until 12:00:02
}

func ExamplePlace() {
	s := policy.Snapshot{Hosts: []policy.Host{
		{Name: "cheap", State: policy.Asleep, Devices: policy.GPU, Labels: []string{"spot"}},
		{Name: "dear", State: policy.Asleep, Devices: policy.GPU},
	}}
	m := policy.Model{ID: "llama", Type: policy.LLM, Devices: policy.GPU, Hosts: []string{"spot", "dear"}}
	p := policy.Place(s, m, nil)
	fmt.Println(p.Host, p.Wake, p.Reason)

	p = policy.Place(s, m, map[string]string{"cheap": "no capacity"})
	fmt.Println(p.Host, p.Wake, p.Reason)
	// Output:
	// cheap true wake_host
	// dear true wake_host
}

func ExampleIdle() {
	s := policy.Snapshot{Hosts: []policy.Host{
		{Name: "a", State: policy.Ready, UpSince: noon.Add(-time.Hour), Residents: []policy.Resident{
			{ID: "gemma", Type: policy.LLM, State: policy.ModelLoaded, Used: noon.Add(-12 * time.Minute)},
		}},
		{Name: "b", State: policy.Ready, UpSince: noon.Add(-time.Hour), Active: noon.Add(-20 * time.Minute)},
	}}
	p := policy.Idle(s, noon, policy.Defaults{Idle: 10 * time.Minute, HostIdle: 15 * time.Minute, HostMinUp: 5 * time.Minute})
	fmt.Println(p.Unload)
	fmt.Println(p.Sleep)
	// Output:
	// [{a gemma model_idle: unused for 12m0s}]
	// [{b host_idle: idle for 20m0s}]
}
