variable "alarm_email" {
  description = "E-mail address that hears of alarms; null subscribes nobody to their topic."
  type        = string
  default     = null

  validation {
    condition     = var.alarm_email == null || can(regex("^[^@\\s]+@[^@\\s]+$", var.alarm_email))
    error_message = "alarm_email must be one e-mail address such as ops@example.com, or null."
  }
}

variable "alarm_host_hours" {
  description = "Hours that all hosts together may run in one day, as EC2 bills them, before an alarm goes off."
  type        = number
  default     = 12

  validation {
    condition     = var.alarm_host_hours > 0
    error_message = "alarm_host_hours must be more than 0; for no practical limit set 24 times the number of hosts."
  }
}

variable "alarm_queue_minutes" {
  description = "Minutes that tickets may wait without a break before an alarm goes off; a cold start takes up to 5."
  type        = number
  default     = 10

  validation {
    condition     = var.alarm_queue_minutes >= 1 && var.alarm_queue_minutes <= 1440 && floor(var.alarm_queue_minutes) == var.alarm_queue_minutes
    error_message = "alarm_queue_minutes must be a whole number from 1 to 1440."
  }
}

variable "api_keys" {
  description = "API keys that the gateway accepts, one element a key: the key or sha256:DIGEST, then its scopes (infer, manage), its limits (requests=60/m loads=20/h open=8 waiting=100), and a name. Ephemeral: in no state and no plan; written when api_keys_version rises."
  type        = list(string)
  sensitive   = true
  ephemeral   = true

  validation {
    condition     = length(var.api_keys) > 0 && alltrue([for k in var.api_keys : can(regex("^(sha256:[0-9a-fA-F]{64}|[^\\s#]{16,})(\\s+((infer|manage)(,(infer|manage))?|(requests|loads|open|waiting)=\\S+)(\\s.*)?)?$", k)) && length(regexall("\\s(requests|loads|open|waiting)=", k)) == length(regexall("\\s((requests|loads)=[1-9][0-9]*/[smh]|(open|waiting)=[1-9][0-9]*)\\b", k))])
    error_message = "api_keys needs at least one key, each at least 16 characters or sha256: and 64 hex digits, then optionally its scopes and limits such as requests=60/m, loads=20/h, open=8 or waiting=100; make one with: gateway key."
  }
}

variable "api_keys_version" {
  description = "Raise it to write the present value of api_keys."
  type        = number
  default     = 1

  validation {
    condition     = var.api_keys_version >= 1 && floor(var.api_keys_version) == var.api_keys_version
    error_message = "api_keys_version must be a whole number from 1 up."
  }
}

variable "cache_max_gb" {
  description = "Most data that the serverless cache stores, in GB; it is billed by use."
  type        = number
  default     = 2

  validation {
    condition     = var.cache_max_gb >= 1 && var.cache_max_gb <= 5000 && floor(var.cache_max_gb) == var.cache_max_gb
    error_message = "cache_max_gb must be a whole number from 1 to 5000."
  }
}

variable "cache_mode" {
  description = "Where the pool's state is. serverless: ElastiCache Serverless for Valkey. node: one cache.t4g.micro Valkey node."
  type        = string
  default     = "serverless"

  validation {
    condition     = contains(["serverless", "node"], var.cache_mode)
    error_message = "cache_mode must be \"serverless\" or \"node\"."
  }
}

variable "certificate_arn" {
  description = "ACM certificate of the Network Load Balancer; needed when front is \"nlb\"."
  type        = string
  default     = null

  validation {
    condition     = var.certificate_arn == null ? var.front != "nlb" : can(regex("^arn:[a-z-]+:acm:", var.certificate_arn))
    error_message = "certificate_arn must be the ARN of an ACM certificate in this region when front is \"nlb\"; without one use front = \"cloudfront\"."
  }
}

variable "dist_dir" {
  description = "Folder with what `make dist` built; null is dist beside this folder."
  type        = string
  default     = null

  validation {
    condition     = var.dist_dir == null || fileexists("${coalesce(var.dist_dir, ".")}/SHA256SUMS")
    error_message = "dist_dir has no SHA256SUMS: run make dist first, or set dist_dir to the folder that it wrote."
  }
}

variable "enable_bucket_tls_policy" {
  description = "Whether the bucket refuses plain HTTP; off only for AWS emulators, which ignore the conditions of policies."
  type        = bool
  default     = true
}

variable "enable_ipv6" {
  description = "Whether the network has IPv6 too, over which the warmer's function reaches AWS's APIs free of charge; without it it needs interface endpoints."
  type        = bool
  default     = true
}

variable "environment" {
  description = "Name of this deployment among several; part of every resource's name."
  type        = string
  default     = "dev"

  validation {
    condition     = can(regex("^[a-z0-9]{2,10}$", var.environment))
    error_message = "environment must be 2 to 10 lower-case letters or digits, such as prod."
  }
}

variable "exclude_zone_ids" {
  description = "Zones that are not used; by default those where AWS lacks services of this stack."
  type        = list(string)
  default     = ["apne1-az3", "apne2-az1", "cac1-az3", "use1-az3", "usw1-az2"]

  validation {
    condition     = alltrue([for z in var.exclude_zone_ids : can(regex("^[a-z]+[0-9]-az[0-9]+$", z))])
    error_message = "exclude_zone_ids must be ids such as use1-az3, which mean the same zone in every account, not names such as us-east-1e."
  }
}

variable "front" {
  description = "What ends TLS before the gateway. cloudfront: CloudFront's own domain. nlb: a Network Load Balancer with certificate_arn. none: nothing, plain HTTP for networks of your own."
  type        = string
  default     = "cloudfront"

  validation {
    condition     = contains(["cloudfront", "nlb", "none"], var.front)
    error_message = "front must be \"cloudfront\", \"nlb\" or \"none\"."
  }
  validation {
    condition     = var.front != "none" || !contains(var.gateway_allowed_cidrs, "0.0.0.0/0")
    error_message = "front = \"none\" would send API keys over the internet in the clear: set gateway_allowed_cidrs to your own networks, or use \"cloudfront\" or \"nlb\"."
  }
}

variable "gateway_allowed_cidrs" {
  description = "IPv4 networks that may reach the gateway instance where front is \"nlb\" or \"none\"; with CloudFront only CloudFront may."
  type        = list(string)
  default     = ["0.0.0.0/0"]

  validation {
    condition     = length(var.gateway_allowed_cidrs) > 0 && alltrue([for c in var.gateway_allowed_cidrs : can(cidrnetmask(c))])
    error_message = "gateway_allowed_cidrs must be IPv4 networks such as 192.0.2.0/24, at least one."
  }
}

variable "gateway_instance_type" {
  description = "Instance type of the gateway, an arm64 one."
  type        = string
  default     = "t4g.nano"

  validation {
    condition     = can(regex("^(t4g|[a-z][6-9]g[a-z]*)\\.[a-z0-9-]+$", var.gateway_instance_type))
    error_message = "gateway_instance_type must be an arm64 type such as t4g.nano or c7g.medium: the gateway runs as a linux/arm64 program."
  }
}

variable "gateway_port" {
  description = "TCP port that the gateway instance listens on."
  type        = number
  default     = 8080

  validation {
    condition     = var.gateway_port >= 1024 && var.gateway_port <= 65535 && floor(var.gateway_port) == var.gateway_port
    error_message = "gateway_port must be a TCP port from 1024 to 65535: the gateway does not run as root."
  }
}

variable "hold_seconds" {
  description = "Longest time in seconds that a request waits for a cold model."
  type        = number
  default     = 300

  validation {
    condition     = var.hold_seconds >= 1 && var.hold_seconds <= 3600
    error_message = "hold_seconds must be from 1 to 3600."
  }
}

variable "host_idle_minutes" {
  description = "Minutes without activity after which a host without models is put to sleep."
  type        = number
  default     = 15

  validation {
    condition     = var.host_idle_minutes >= 1
    error_message = "host_idle_minutes must be at least 1: the warmer looks once a minute."
  }
}

variable "host_min_up_minutes" {
  description = "Minutes that a host stays awake at least."
  type        = number
  default     = 5

  validation {
    condition     = var.host_min_up_minutes >= 0
    error_message = "host_min_up_minutes must not be negative."
  }
}

variable "kms_key_arn" {
  description = "KMS key of the bucket, the secrets, the disks, the cache and the logs; null for AWS's own. Its policy must let in CloudWatch Logs and, for groups, Auto Scaling's role."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key_arn == null || can(regex("^arn:[a-z-]+:kms:[a-z0-9-]+:[0-9]{12}:key/.+$", var.kms_key_arn))
    error_message = "kms_key_arn must be the ARN of a key, arn:aws:kms:…:key/…, or null."
  }
}

variable "log_retention_days" {
  description = "Days that logs are kept."
  type        = number
  default     = 14

  validation {
    condition     = contains([1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365], var.log_retention_days)
    error_message = "log_retention_days must be one of 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365."
  }
}

variable "model_idle_minutes" {
  description = "Minutes without traffic after which a model is unloaded, where models_file says nothing."
  type        = number
  default     = 10

  validation {
    condition     = var.model_idle_minutes >= 1
    error_message = "model_idle_minutes must be at least 1: the warmer looks once a minute."
  }
}

variable "models_file" {
  description = "The models.yaml of the deployment; $${model_bucket} in it is the bucket's name, and the hosts of runner_pools are added to its hosts. null: hosts alone."
  type        = string
  default     = null

  validation {
    condition     = var.models_file == null || can(yamldecode(templatefile(var.models_file, { model_bucket = "bucket" })).models)
    error_message = "models_file must be a YAML file with a models section; gateway check FILE says more."
  }
}

variable "monthly_budget" {
  description = "US dollars a month of the whole account; alarm_email hears when 80 % are spent, or 100 % forecast. null: no budget."
  type        = number
  default     = null

  validation {
    condition     = var.monthly_budget == null ? true : var.monthly_budget > 0 && var.alarm_email != null
    error_message = "monthly_budget must be more than 0, and needs alarm_email, which hears of it."
  }
}

variable "name" {
  description = "First part of every resource's name."
  type        = string
  default     = "reveille"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,14}[a-z0-9]$", var.name))
    error_message = "name must be 2 to 16 lower-case letters, digits and hyphens, beginning with a letter and not ending with a hyphen."
  }
}

variable "permissions_boundary" {
  description = "ARN of the policy that bounds what the stack's roles may do; null: none."
  type        = string
  default     = null

  validation {
    condition     = var.permissions_boundary == null || can(regex("^arn:[a-z-]+:iam::([0-9]{12}|aws):policy/.+$", var.permissions_boundary))
    error_message = "permissions_boundary must be the ARN of a policy, arn:aws:iam::…:policy/…, or null."
  }
}

variable "redis_passwords" {
  description = "Password of the pool's user of Redis; while it is rotated two, the new one first. Empty: whoever reaches the cache may use it. They are in the state."
  type        = list(string)
  default     = []
  sensitive   = true

  validation {
    condition     = length(var.redis_passwords) <= 2 && alltrue([for p in var.redis_passwords : can(regex("^[!-~]{16,128}$", p))])
    error_message = "redis_passwords must be at most 2 passwords of 16 to 128 visible characters of ASCII; make one with: openssl rand -hex 32."
  }
}

variable "redis_secret_arn" {
  description = "Secret of Secrets Manager with the user and password of redis_url, as {\"username\": …, \"password\": …}; null: it asks for none."
  type        = string
  default     = null

  validation {
    condition     = var.redis_secret_arn == null ? true : can(regex("^arn:[a-z-]+:secretsmanager:", var.redis_secret_arn)) && var.redis_url != null
    error_message = "redis_secret_arn must be the ARN of a secret, and needs redis_url; for the stack's own cache use redis_passwords."
  }
}

variable "redis_url" {
  description = "An existing Redis or Valkey, such as rediss://HOST:6379/0, with ?cluster=true for a Cluster; it must not evict. null: the stack makes a cache."
  type        = string
  default     = null

  validation {
    condition     = var.redis_url == null || can(regex("^rediss?://[^:/@?]+:[0-9]+(/[0-9]*)?(\\?cluster=true)?$", var.redis_url))
    error_message = "redis_url must be such as rediss://HOST:6379/0 or rediss://HOST:6379/0?cluster=true, without a password, which goes into redis_secret_arn."
  }
  validation {
    condition     = var.redis_url == null || nonsensitive(length(var.redis_passwords)) == 0
    error_message = "redis_url is a Redis of your own: put its user and password into redis_secret_arn, not into redis_passwords."
  }
}

variable "runner_pools" {
  description = "Runner hosts by pool. disk_throughput: of the gp3 disk, in MiB/s. environment: further settings of the runners, such as REVEILLE_WEIGHTS_BYTES; secrets: environment variables with the ARN of a secret that holds their value, such as HF_TOKEN. stop_idle: whether an alarm stops a host of strategy stopped that has done nothing for an hour, if Reveille has not; turn it off where models stay loaded without requests. instance_types: in place of instance_type, several types with alike accelerators, of which AWS launches one that is available, with strategy asg; on-demand it tries them in this order. spot: spot instances, with strategy asg. on_demand_base, on_demand_percent: with spot and max_size, how many hosts of the group, and which percentage of the hosts beyond these, are on-demand. max_size: one Auto Scaling group of up to so many hosts for the pool, in place of hosts, with strategy asg. strategy: stopped (EC2 instances that are started and stopped), warm_pool (an Auto Scaling group a host, with a stopped spare), asg (the same, launched cold). engine: the folder below engines/ of the bucket with the build of the engine, such as gpu-b9000; by default the accelerator's name. image: an AMI id; image_parameter: an SSM parameter with one."
  type = map(object({
    accelerator       = string
    instance_type     = optional(string)
    instance_types    = optional(list(string), [])
    disk_gb           = optional(number, 100)
    disk_throughput   = optional(number, 125)
    engine            = optional(string)
    environment       = optional(map(string), {})
    hosts             = optional(number, 1)
    image             = optional(string)
    image_parameter   = optional(string)
    max_loaded_models = optional(string, "1")
    max_size          = optional(number)
    npu_seats         = optional(string, "")
    on_demand_base    = optional(number, 0)
    on_demand_percent = optional(number, 0)
    port              = optional(number, 8090)
    price             = optional(number)
    secrets           = optional(map(string), {})
    stop_idle         = optional(bool, true)
    spot              = optional(bool, false)
    strategy          = optional(string, "stopped")
  }))
  default = {
    gpu = {
      accelerator   = "gpu"
      instance_type = "g6.xlarge"
    }
  }

  validation {
    condition     = length(var.runner_pools) > 0 && alltrue([for k in keys(var.runner_pools) : can(regex("^[a-z][a-z0-9]{0,11}$", k))])
    error_message = "runner_pools needs at least one pool, each named with 1 to 12 lower-case letters and digits, beginning with a letter."
  }
  validation {
    condition     = alltrue([for p in values(var.runner_pools) : contains(["gpu", "npu"], p.accelerator)])
    error_message = "runner_pools: accelerator must be \"gpu\" or \"npu\"."
  }
  validation {
    condition     = alltrue([for p in values(var.runner_pools) : (p.instance_type == null) != (length(p.instance_types) == 0)])
    error_message = "runner_pools: set instance_type or instance_types, one of them."
  }
  validation {
    condition     = alltrue([for p in values(var.runner_pools) : length(p.instance_types) <= 40 && length(distinct(p.instance_types)) == length(p.instance_types) && (length(p.instance_types) < 2 || p.strategy == "asg")])
    error_message = "runner_pools: instance_types must be up to 40 different types, and more than one needs strategy = \"asg\"."
  }
  validation {
    condition     = alltrue([for p in values(var.runner_pools) : alltrue([for t in concat(p.instance_type[*], p.instance_types) : p.accelerator != "npu" || can(regex("^(inf2|trn1n?|trn2)\\.", t))])])
    error_message = "runner_pools: an npu pool needs an instance_type of inf2, trn1 or trn2, such as inf2.xlarge."
  }
  validation {
    condition     = alltrue([for p in values(var.runner_pools) : alltrue([for t in concat(p.instance_type[*], p.instance_types) : p.accelerator != "gpu" || can(regex("^(g4dn|g5|g[6-9][a-z]*|gr[6-9][a-z]*|p[4-9][a-z]*)(-[a-z0-9]+)?\\.", t))])])
    error_message = "runner_pools: a gpu pool needs an instance_type with an x86_64 processor and a GPU that the image's driver knows, Nvidia's since Turing, such as g6.xlarge."
  }
  validation {
    condition     = alltrue([for p in values(var.runner_pools) : contains(["stopped", "warm_pool", "asg"], p.strategy)])
    error_message = "runner_pools: strategy must be \"stopped\", \"warm_pool\" or \"asg\"."
  }
  validation {
    condition     = alltrue([for p in values(var.runner_pools) : !p.spot || p.strategy == "asg"])
    error_message = "runner_pools: spot needs strategy = \"asg\": a spot instance cannot be kept stopped here."
  }
  validation {
    condition     = alltrue([for p in values(var.runner_pools) : p.on_demand_base >= 0 && floor(p.on_demand_base) == p.on_demand_base && p.on_demand_percent >= 0 && p.on_demand_percent <= 100 && floor(p.on_demand_percent) == p.on_demand_percent])
    error_message = "runner_pools: on_demand_base must be a whole number from 0 up, and on_demand_percent one from 0 to 100."
  }
  validation {
    condition     = alltrue([for p in values(var.runner_pools) : (p.on_demand_base == 0 && p.on_demand_percent == 0) || (p.spot && p.max_size != null)])
    error_message = "runner_pools: on_demand_base and on_demand_percent are a share of a group of spot instances: they need spot = true and max_size."
  }
  validation {
    condition     = alltrue([for p in values(var.runner_pools) : p.hosts >= 1 && p.hosts <= 20 && floor(p.hosts) == p.hosts])
    error_message = "runner_pools: hosts must be a whole number from 1 to 20."
  }
  validation {
    condition     = alltrue([for p in values(var.runner_pools) : p.max_size == null ? true : p.strategy == "asg" && p.hosts == 1 && p.max_size >= 2 && p.max_size <= 100 && floor(p.max_size) == p.max_size])
    error_message = "runner_pools: max_size must be a whole number from 2 to 100, in place of hosts, and needs strategy = \"asg\"."
  }
  validation {
    condition     = alltrue([for p in values(var.runner_pools) : p.disk_gb >= 50 && p.disk_gb <= 16384])
    error_message = "runner_pools: disk_gb must be from 50 to 16384: the image alone takes about 45."
  }
  validation {
    condition     = alltrue([for p in values(var.runner_pools) : p.disk_throughput >= 125 && p.disk_throughput <= 1000 && floor(p.disk_throughput) == p.disk_throughput])
    error_message = "runner_pools: disk_throughput must be a whole number of MiB/s from 125 to 1000."
  }
  validation {
    condition     = alltrue([for p in values(var.runner_pools) : p.engine == null || can(regex("^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$", p.engine))])
    error_message = "runner_pools: engine must be the name of one folder below engines/ of the bucket, such as gpu-b9000."
  }
  validation {
    condition     = alltrue([for p in values(var.runner_pools) : alltrue([for name, value in p.environment : can(regex("^[A-Z][A-Z0-9_]*$", name)) && can(regex("^[^\n]*$", value))])])
    error_message = "runner_pools: environment must be variables in capital letters with values of one line, such as REVEILLE_WEIGHTS_BYTES."
  }
  validation {
    condition     = alltrue([for p in values(var.runner_pools) : alltrue([for name, arn in p.secrets : can(regex("^[A-Z][A-Z0-9_]*$", name)) && can(regex("^arn:[a-z-]+:secretsmanager:[a-z0-9-]+:[0-9]{12}:secret:[A-Za-z0-9/_+=.@-]+$", arn))])])
    error_message = "runner_pools: secrets must be variables in capital letters, each with the ARN of a secret, such as HF_TOKEN = \"arn:aws:secretsmanager:…:secret:…\"."
  }
  validation {
    condition     = alltrue([for p in values(var.runner_pools) : p.port >= 1024 && p.port <= 65535])
    error_message = "runner_pools: port must be a TCP port from 1024 to 65535."
  }
  validation {
    condition     = alltrue([for p in values(var.runner_pools) : p.image == null || p.image_parameter == null])
    error_message = "runner_pools: set image or image_parameter, not both; neither is AWS's deep learning image of the accelerator."
  }
}

variable "runner_secret" {
  description = "What gateways and runners sign their calls with; for example from: openssl rand -hex 32. Ephemeral: in no state and no plan; written when runner_secret_version rises."
  type        = string
  sensitive   = true
  ephemeral   = true

  validation {
    condition     = can(regex("^[A-Za-z0-9+/=_-]{32,}$", var.runner_secret))
    error_message = "runner_secret must be at least 32 letters, digits and + / = _ -; for example from: openssl rand -hex 32."
  }
}

variable "runner_secret_version" {
  description = "Raise it to write the present value of runner_secret; hosts take it at their next boot, the gateway when it is replaced."
  type        = number
  default     = 1

  validation {
    condition     = var.runner_secret_version >= 1 && floor(var.runner_secret_version) == var.runner_secret_version
    error_message = "runner_secret_version must be a whole number from 1 up."
  }
}

variable "subnet_ids" {
  description = "Subnets of vpc_id, 2 or 3 in different zones, for all that the stack makes; they must lead to AWS's APIs, by NAT or endpoints. Empty: a network of its own."
  type        = list(string)
  default     = []

  validation {
    condition     = contains([0, 2, 3], length(var.subnet_ids))
    error_message = "subnet_ids must be 2 or 3 subnets in different zones, or empty for a network of the stack's own."
  }
}

variable "tags" {
  description = "Tags of all resources, beside Project, Environment and ManagedBy."
  type        = map(string)
  default     = {}

  validation {
    condition     = length(setintersection(keys(var.tags), ["Environment", "Host", "ManagedBy", "Name", "Project"])) == 0
    error_message = "tags must not hold Environment, Host, ManagedBy, Name or Project: policies and hosts go by them."
  }
  validation {
    condition     = alltrue([for k, v in var.tags : can(regex("^[A-Za-z0-9 _.:/=+@-]{1,128}$", k)) && !startswith(lower(k), "aws:") && can(regex("^[A-Za-z0-9 _.:/=+@-]{0,256}$", v))])
    error_message = "tags must have names of 1 to 128 and values of up to 256 letters, digits, spaces and _ . : / = + @ -, and no name may begin with aws:."
  }
}

variable "vpc_cidr" {
  description = "IPv4 network of the VPC."
  type        = string
  default     = "10.42.0.0/16"

  validation {
    condition     = can(cidrnetmask(var.vpc_cidr)) && contains(["16", "17", "18", "19", "20"], split("/", var.vpc_cidr)[1])
    error_message = "vpc_cidr must be an IPv4 network from /16 to /20, such as 10.42.0.0/16."
  }
}

variable "vpc_id" {
  description = "An existing VPC, with subnet_ids; the stack makes nothing public in it but with CloudFront, which needs the VPC to have an internet gateway. null: a network of its own."
  type        = string
  default     = null

  validation {
    condition     = (var.vpc_id == null) == (length(var.subnet_ids) == 0)
    error_message = "vpc_id and subnet_ids go together: set both, or neither."
  }
}

variable "warmer_minutes" {
  description = "Minutes between two sweeps of the warmer."
  type        = number
  default     = 1

  validation {
    condition     = var.warmer_minutes >= 1 && var.warmer_minutes <= 60 && floor(var.warmer_minutes) == var.warmer_minutes
    error_message = "warmer_minutes must be a whole number from 1 to 60."
  }
}

variable "zones" {
  description = "How many availability zones the network has; a host lives in one that has its instance type."
  type        = number
  default     = 2

  validation {
    condition     = contains([2, 3], var.zones)
    error_message = "zones must be 2 or 3, which is what a serverless cache takes."
  }
}
