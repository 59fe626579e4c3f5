package mmstats

import (
	"reflect"
	"testing"
)

func TestTallies(t *testing.T) {
	got := ReadStats(map[string]float64{
		CounterOf(CountHitsL1, "eye"): 3, CounterOf(CountHitsL2, "eye"): 2, CounterOf(CountMisses, "eye"): 1, CounterOf(CountSavedSeconds, "eye"): 0.5,
		CounterOf(CountMisses, "org/ear:q4"): 7,
		"request_count_total":                9, "of_another_kind:eye": 4, CountHitsL1: 5,
	})
	want := map[string]Stats{"eye": {HitsL1: 3, HitsL2: 2, Misses: 1, SavedSeconds: 0.5}, "org/ear:q4": {Misses: 7}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	sum := got["eye"].Plus(got["org/ear:q4"])
	if sum.Hits() != 5 || sum.Misses != 8 || sum.SavedSeconds != 0.5 {
		t.Errorf("%+v", sum)
	}
	if IsCounterOf("request_count_total") || !IsCounterOf(CounterOf(CountMisses, "m")) {
		t.Error("a counter of the pool and one of a model are mistaken")
	}
}
