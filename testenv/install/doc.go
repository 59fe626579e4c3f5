// Package install holds the tests of what an operator installs: units, images, the compose file and the chart below
// infra/install. Their settings exist, they are valid, and the images work with nothing else around them.
package install
