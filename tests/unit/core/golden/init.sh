#!/usr/bin/env bash
# What `bench init` would do. It can be run again: what exists already is reported and not changed.
set -u

# enable compute.googleapis.com, storage.googleapis.com, iam.googleapis.com, cloudresourcemanager.googleapis.com, cloudbilling.googleapis.com, batch.googleapis.com
gcloud services enable compute.googleapis.com storage.googleapis.com iam.googleapis.com cloudresourcemanager.googleapis.com cloudbilling.googleapis.com batch.googleapis.com --project=my-project

# make the bucket gs://my-bench in us-central1: uniform access, no public access, payloads deleted after 180 days
gcloud storage buckets create gs://my-bench --project=my-project --location=us-central1 --uniform-bucket-level-access --public-access-prevention
rules=$(mktemp) && printf '%s\n' '{"rule": [{"action": {"type": "Delete"}, "condition": {"age": 180, "matchesPrefix": ["payloads/"]}}, {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 7}}]}' >"$rules" && gcloud storage buckets update gs://my-bench --lifecycle-file="$rules"; rm -f "$rules"

# make the service account bench-vm (machines of bench)
gcloud iam service-accounts create bench-vm --project=my-project --display-name='machines of bench'

# make the role benchMachine (bench: a machine deletes itself): 1 permission
gcloud iam roles create benchMachine --project=my-project --title='bench: a machine deletes itself' --stage=GA --permissions=compute.instances.delete

# grant benchMachine on the project to serviceAccount:bench-vm@my-project.iam.gserviceaccount.com, machines of bench only
gcloud projects add-iam-policy-binding my-project --member=serviceAccount:bench-vm@my-project.iam.gserviceaccount.com --role=projects/my-project/roles/benchMachine --condition='expression=resource.name.extract("/instances/{name}").startsWith("bench-"),title=machines of bench only'

# grant batch.agentReporter on the project to serviceAccount:bench-vm@my-project.iam.gserviceaccount.com
gcloud projects add-iam-policy-binding my-project --member=serviceAccount:bench-vm@my-project.iam.gserviceaccount.com --role=roles/batch.agentReporter --condition=None

# grant storage.objectUser on gs://my-bench to serviceAccount:bench-vm@my-project.iam.gserviceaccount.com, runs and machines only
gcloud storage buckets add-iam-policy-binding gs://my-bench --member=serviceAccount:bench-vm@my-project.iam.gserviceaccount.com --role=roles/storage.objectUser --condition='expression=resource.type == "storage.googleapis.com/Object" && (resource.name.startsWith("projects/_/buckets/my-bench/objects/machines/") || resource.name.startsWith("projects/_/buckets/my-bench/objects/runs/") && !resource.name.endsWith("/plan.json")) && resource.name.extract("Z-client-{event}") == "",title=runs and machines only'

# grant storage.objectViewer on gs://my-bench to serviceAccount:bench-vm@my-project.iam.gserviceaccount.com, payloads and names only
gcloud storage buckets add-iam-policy-binding gs://my-bench --member=serviceAccount:bench-vm@my-project.iam.gserviceaccount.com --role=roles/storage.objectViewer --condition='expression=resource.type == "storage.googleapis.com/Bucket" || resource.name.startsWith("projects/_/buckets/my-bench/objects/payloads/"),title=payloads and names only'

# make the role benchLauncher (bench: launch and look): 44 permissions
gcloud iam roles create benchLauncher --project=my-project --title='bench: launch and look' --stage=GA --permissions=batch.jobs.create,batch.jobs.delete,batch.jobs.get,batch.tasks.list,compute.advice.capacity,compute.advice.capacityHistory,compute.disks.create,compute.disks.setLabels,compute.disks.useReadOnly,compute.globalOperations.get,compute.images.create,compute.images.delete,compute.images.deprecate,compute.images.get,compute.images.getFromFamily,compute.images.list,compute.images.setLabels,compute.images.useReadOnly,compute.instanceTemplates.create,compute.instanceTemplates.delete,compute.instanceTemplates.get,compute.instances.create,compute.instances.delete,compute.instances.get,compute.instances.getSerialPortOutput,compute.instances.list,compute.instances.setLabels,compute.instances.setMetadata,compute.instances.setServiceAccount,compute.instances.simulateMaintenanceEvent,compute.networks.get,compute.projects.get,compute.regions.get,compute.regions.list,compute.routers.list,compute.subnetworks.list,compute.subnetworks.use,compute.subnetworks.useExternalIp,compute.zoneOperations.get,compute.zoneOperations.list,iam.serviceAccounts.get,resourcemanager.projects.get,serviceusage.services.get,serviceusage.services.list

# grant benchLauncher on the project to user:ada@example.com
gcloud projects add-iam-policy-binding my-project --member=user:ada@example.com --role=projects/my-project/roles/benchLauncher --condition=None

# grant storage.objectUser on gs://my-bench to user:ada@example.com
gcloud storage buckets add-iam-policy-binding gs://my-bench --member=user:ada@example.com --role=roles/storage.objectUser --condition=None

# grant storage.legacyBucketReader on gs://my-bench to user:ada@example.com
gcloud storage buckets add-iam-policy-binding gs://my-bench --member=user:ada@example.com --role=roles/storage.legacyBucketReader --condition=None

# grant iam.serviceAccountUser on bench-vm@my-project.iam.gserviceaccount.com to user:ada@example.com
gcloud iam service-accounts add-iam-policy-binding bench-vm@my-project.iam.gserviceaccount.com --project=my-project --member=user:ada@example.com --role=roles/iam.serviceAccountUser

# write to settings.yaml: project: my-project, bucket: my-bench, service_account: bench-vm@my-project.iam.gserviceaccount.com, per_run_usd: 1.00, per_day_usd: 5.00
# by hand: these lines, in /home/ada/settings.yaml
#   project: "my-project"
#   bucket: "my-bench"
#   service_account: "bench-vm@my-project.iam.gserviceaccount.com"
#   per_run_usd: "1.00"
#   per_day_usd: "5.00"

# cap what everybody spends through gs://my-bench: run $1.00, day $5.00
bench --project my-project --bucket my-bench budget set --run 1.00 --day 5.00
