package bodycheck

import (
	"testing"

	"reveille/infra/jsonscan"
)

func TestSamplers(t *testing.T) {
	for text, ok := range map[string]bool{
		`["penalties","dry","top_n_sigma","top_k","typ_p","top_p","min_p","xtc","temperature"]`: true,
		`["top-k","nucleus","typ","min-p","temp","adaptive_p"]`:                                 true,
		`["temperature","top_k","temp"]`:                                                        false,
		`["nucleus","top-p"]`:                                                                   false,
		`["typ_p","typical"]`:                                                                   false,
		`"` + samplerLetters + `"`:                                                              true,
		`""`:                                                                                    true,
		`[]`:                                                                                    true,
		`["infill"]`:                                                                            false,
		`["top_k","infill"]`:                                                                    false,
		`["\u0069nfill"]`:                                                                       false,
		`["INFILL"]`:                                                                            false,
		`["infill "]`:                                                                           false,
		`["top_k\u0000"]`:                                                                       false,
		`["xyz"]`:                                                                               false,
		`[""]`:                                                                                  false,
		`["k"]`:                                                                                 false,
		`"i"`:                                                                                   false,
		`"ki"`:                                                                                  false,
		`"k\u0069"`:                                                                             false,
		`"kk"`:                                                                                  false,
		`"k,"`:                                                                                  false,
		`"kK"`:                                                                                  false,
		`{"top_k":1}`:                                                                           false,
		`5`:                                                                                     false,
	} {
		w := jsonscan.WalkOf([]byte(text))
		if got := areSamplers(w.Raw()); got != ok {
			t.Errorf("%s: %v, want %v", text, got, ok)
		}
	}
}
