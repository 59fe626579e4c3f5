package system

import (
	"strings"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// A models file needs no hosts: gateway run serves its models on this machine. A model that this machine cannot run is
// refused with the reason.
func TestModelsFileWithoutHosts(t *testing.T) {
	s := testenv.Start(t, testenv.Spec{Models: calls.Catalogue{"m": "llm, hosts: [quick]", "n": "llm, device: npu"}.YAML(""), Args: []string{"--devices=cpu", "--host=desk", "--labels=quick,near"}})
	c := calls.Client(t, 1)
	if a := calls.Chat(t.Context(), c, s.URL, "m", 1, false); !a.OK() {
		t.Errorf("%v", a)
	}
	if a := calls.Chat(t.Context(), c, s.URL, "n", 1, false); a.OK() || !strings.Contains(a.Error().Message, "model n: it needs device npu") {
		t.Errorf("%v", a)
	}
}
