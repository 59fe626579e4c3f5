package host

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/state"
)

// optionCase is a model with one number and one backend, each set in some layers: request, saved, models file, run-time
// settings, flags.
type optionCase struct {
	model, number, backend string
	numbers                [5]int64  // 0: not set
	backends               [5]string // "": not set
	device                 string    // of the models file, "" for none
}

func drawOptions(t *rapid.T) optionCase {
	c := rapid.SampledFrom([]optionCase{
		{model: "l", number: "ctx_size", backend: "llamacpp"}, {model: "o", number: "n_parallel", backend: "openvino"}, {model: "p", number: "n_parallel", backend: "openvino"},
	}).Draw(t, "model")
	backends, devices := []string{"cpu", "gpu", "npu"}, []string{"", "cpu", "gpu", "npu"}
	if c.model == "l" {
		backends, devices = []string{"cpu", "vulkan"}, []string{"", "cpu", "gpu"}
	}
	for i := range c.numbers {
		if rapid.IntRange(0, 2).Draw(t, "sets the number") == 0 && (i != 3 || c.number == "ctx_size") { // run-time settings hold no n_parallel
			c.numbers[i] = rapid.Int64Range(1, 4096).Draw(t, "number")
		}
		if rapid.IntRange(0, 3).Draw(t, "sets the backend") == 0 {
			c.backends[i] = rapid.SampledFrom(backends).Draw(t, "backend")
		}
	}
	if c.backends[2] == "" { // the models file may not name both
		c.device = rapid.SampledFrom(devices).Draw(t, "device")
	}
	return c
}

// layer is one layer's options as JSON, "" for none.
func (c *optionCase) layer(i int) string {
	out := map[string]any{}
	if c.numbers[i] != 0 {
		out[c.number] = c.numbers[i]
	}
	if c.backends[i] != "" {
		out[c.backend+"_backend"] = c.backends[i]
	}
	if len(out) == 0 {
		return ""
	}
	text, _ := json.Marshal(out)
	return string(text)
}

// want is what the first layer that sets something says: the number, 0 for none, and the device.
func (c *optionCase) want() (number int64, device policy.Devices) {
	for i := len(c.numbers) - 1; i >= 0; i-- {
		if c.numbers[i] != 0 {
			number = c.numbers[i]
		}
	}
	name := c.device
	for i := len(c.backends) - 1; i >= 0; i-- {
		if c.backends[i] != "" {
			name = c.backends[i]
		}
	}
	switch name {
	case "cpu":
		return number, policy.CPU
	case "npu":
		return number, policy.NPU
	}
	return number, policy.GPU // both recipes' own
}

// TestOptionsDecidePlanAndDevice: whichever layer sets them, options reach the plan, and its share is that of the
// device that they select. Loads in any order and by any of these ways leave one model at most on the NPU.
func TestOptionsDecidePlanAndDevice(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		budget := map[policy.Devices]int64{policy.CPU: 1000, policy.GPU: 2000}
		var h *Host
		residents := map[string]*resident{}
		for step := range rapid.IntRange(1, 6).Draw(rt, "loads") {
			c := drawOptions(rt)
			own := c.layer(2)
			if own == "" {
				own = "{}"
			}
			entry := fmt.Sprintf("type: llm, checkpoint: \"/models/x.gguf\", recipe: %s, options: %s", map[string]string{"l": "llamacpp", "o": "openvino", "p": "openvino"}[c.model], own)
			if c.device != "" {
				entry += ", device: " + c.device
			}
			var p *planner
			h, p = planning(t, Config{Limits: policy.Uniform(-1), Hardware: Hardware{Devices: policy.CPU | policy.GPU | policy.NPU, Budget: budget}}, "models:\n  "+c.model+": {"+entry+"}\n")
			h.residents = residents
			h.settings.saved = map[string]string{c.model: c.layer(1)}
			h.settings.runtime = map[string]string{}
			if c.numbers[3] != 0 {
				h.settings.runtime[c.number] = fmt.Sprint(c.numbers[3])
			}
			if c.backends[3] != "" {
				h.settings.runtime[c.backend] = fmt.Sprintf(`{"backend":%q}`, c.backends[3])
			}
			h.cfg.Options = recipe.Options{}
			if c.numbers[4] != 0 {
				h.cfg.Options[c.number] = c.numbers[4]
			}
			if c.backends[4] != "" {
				h.cfg.Options[c.backend+"_backend"] = c.backends[4]
			}
			e, err := h.specFor(state.TicketRecord{Model: c.model, Options: c.layer(0)})
			if err != nil {
				rt.Fatal(err)
			}
			number, device := c.want()
			got, _ := p.options[c.model][c.number].(int64)
			if number != 0 && got != number || e.model.Devices != device || p.shares[c.model].Budget != budget[device] {
				rt.Fatalf("%+v: %s %d on %s with %d bytes, want %d on %s", c, c.number, got, e.model.Devices, p.shares[c.model].Budget, number, device)
			}

			delete(residents, c.model) // a reload stops the copy before it
			now := time.Unix(int64(step), 0)
			next := policy.Next(h.viewLocked([]queuedLoad{{state.TicketRecord{ID: "1"}, e}}), now, 0)
			if next.Ticket != "1" || next.Admission.Decision != policy.DecideLoad {
				rt.Fatalf("%s on %s: %+v", c.model, device, next)
			}
			for _, id := range next.Admission.Evict {
				if !residents[id].model.Devices.Has(policy.NPU) || device != policy.NPU {
					rt.Fatalf("%s on %s evicts %s on %s", c.model, device, id, residents[id].model.Devices)
				}
				delete(residents, id)
			}
			r := e.newResident("1")
			r.status, r.used = serving, now
			residents[c.model] = r
			onNPU := 0
			for _, r := range residents {
				if r.model.Devices.Has(policy.NPU) {
					onNPU++
				}
			}
			if onNPU > 1 || device == policy.NPU && onNPU != 1 {
				rt.Fatalf("%d models on the NPU", onNPU)
			}
		}
	})
}
