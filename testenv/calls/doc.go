// Package calls is what tests of the whole system share as clients of it: catalogs of stand-in models in short, the
// request that suits a model's type, answers and streams read to their end, and waiting for a condition.
package calls
