package scheduling

import (
	"errors"
	"slices"
	"time"

	"reveille/gateway/api"
	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/state"
)

func unavailable(cause error) *api.Error {
	return api.New(api.StateUnavailable, "Models cannot be loaded at the moment; try again.").WithCause(cause)
}

func noCapacity(model string, cause error) *api.Error {
	return api.Newf(api.NoCapacity, "No host could be started for the model '%s'; try again later.", model).WithCause(cause)
}

// closedErr returns the refusal for a host that is not woken before a time; what names it or its model for the client.
func closedErr(what string, c catalog.Closed, now time.Time) *api.Error {
	kind, text := api.HostResting, "%s is not started before %s, by the models file's rest."
	if c.Hours {
		kind, text = api.DailyHostHours, "%s is not started before %s: its hours for today are used up."
	}
	return api.Newf(kind, text, what, c.Until.UTC().Format("2006-01-02 15:04 UTC")).WithRetryAfter(c.Until.Sub(now))
}

// hostFault reports whether a ticket failed because of its host, so that another host may succeed.
func hostFault(r state.TicketRecord) bool {
	return r.WakeError || interrupted(r) || slices.Contains([]string{api.Draining.Code(), api.HostUnreachable.Code()}, r.Code)
}

// interrupted reports whether a ticket failed because its host's machine is being reclaimed. Such a host fails tickets
// immediately, so it gets no backoff; only the group whose ticket failed avoids it. If no other host is left, requests
// get this error.
func interrupted(r state.TicketRecord) bool { return r.Code == api.HostInterrupted.Code() }

// shortage returns a runner's refusal for lack of memory, or nil if it gives no figures.
func shortage(r state.TicketRecord) *policy.Refusal {
	device, err := policy.ParseDevices(r.Fields["device"])
	out := &policy.Refusal{
		Code: policy.TooLarge, Model: r.Model, Device: device, Need: state.ParseNumber(r.Fields["need"]), Budget: state.ParseNumber(r.Fields["budget"]),
		Others: state.ParseNumber(r.Fields["others"]), Parts: r.Fields["parts"], GPUs: r.Fields["cards"],
	}
	if err != nil || out.Need <= 0 {
		return nil
	}
	return out
}

// countsForBackoff reports whether a ticket failed in a way that is likely to repeat and costs the host something, so
// that repeats are spaced out. A missing file or a refusal costs nothing.
func countsForBackoff(r state.TicketRecord) bool {
	return r.State == state.TicketFailed && !hostFault(r) &&
		slices.Contains([]string{api.ModelLoadError.Code(), api.LoadTimeout.Code(), api.EngineOutOfMemory.Code(), api.EngineCrashed.Code()}, r.Code)
}

// failure returns the error for the waiters of a failed ticket. conflict selects the 409 error of a code that has one,
// for management calls.
func failure(r state.TicketRecord, conflict bool) *api.Error {
	message := r.Message
	if message == "" {
		message = "The model '" + r.Model + "' could not be loaded."
	}
	e := api.New(kindOf(r.Code, conflict), message)
	return e.WithCause(errors.New("ticket " + r.ID + " on " + r.Host + " failed"))
}

// kindOf returns the api.Kind of a ticket's code, that of model_load_error for an unknown code.
func kindOf(code string, conflict bool) api.Kind {
	found := api.ModelLoadError
	for _, k := range api.Kinds() {
		if k.Code() != code {
			continue
		}
		if (k.Status() == 409) == conflict {
			return k
		}
		found = k
	}
	return found
}
